"""GPU kernels in Triton. Importing a module of this folder needs triton, which comes with torch's CUDA builds."""
