// exp and the activations, on the vectors of any instruction set V. For inclusion in one file per instruction set.
#pragma once

#include "experts.h"

namespace moesaic {
namespace {

// e^x to 1 or 2 units in the last place; 0 below -104, infinity above 89, NaN unspecified.
template <class V>
inline typename V::F exp_of(typename V::F x) {
  using F = typename V::F;
  x = V::min(V::set1(89.0f), V::max(V::set1(-104.0f), x));
  const F n = V::round(x * V::set1(1.44269504088896341f));
  const F r = V::fma(n, V::set1(2.12194440e-4f), V::fma(n, V::set1(-0.693359375f), x));
  F p = V::set1(1.9875691500e-4f);
  p = V::fma(p, r, V::set1(1.3981999507e-3f));
  p = V::fma(p, r, V::set1(8.3334519073e-3f));
  p = V::fma(p, r, V::set1(4.1665795894e-2f));
  p = V::fma(p, r, V::set1(1.6666665459e-1f));
  p = V::fma(p, r, V::set1(5.0000001201e-1f));
  p = V::fma(p, r * r, r + V::set1(1.0f));
  const F half = V::round(n * V::set1(0.5f));  // in two steps: 2^n itself may be no float while e^x is
  return p * V::pow2(half) * V::pow2(n - half);
}

template <class V>
inline typename V::F silu(typename V::F x) {
  return x / (V::set1(1.0f) + exp_of<V>(V::set1(0.0f) - x));
}

// x * Phi(x), with erfc by a Chebyshev fit whose relative error is below 1.2e-7 everywhere (Press et al., Numerical
// Recipes, section 6.2), so that the tail at negative x is right too.
template <class V>
inline typename V::F gelu(typename V::F x) {
  using F = typename V::F;
  const F near = V::min(V::set1(16.0f), V::max(V::set1(-16.0f), x));  // beyond, erfc is 0 or 2
  const F z = V::abs(near) * V::set1(0.70710678118654752f), one = V::set1(1.0f);
  const F t = one / V::fma(z, V::set1(0.5f), one);
  F p = V::set1(0.17087277f);
  p = V::fma(p, t, V::set1(-0.82215223f));
  p = V::fma(p, t, V::set1(1.48851587f));
  p = V::fma(p, t, V::set1(-1.13520398f));
  p = V::fma(p, t, V::set1(0.27886807f));
  p = V::fma(p, t, V::set1(-0.18628806f));
  p = V::fma(p, t, V::set1(0.09678418f));
  p = V::fma(p, t, V::set1(0.37409196f));
  p = V::fma(p, t, V::set1(1.00002368f));
  p = V::fma(p, t, V::set1(-1.26551223f));
  const F square = near * near;  // and what its rounding lost: of e^-50 even a last place of the exponent counts
  const F lost = V::fma(near, near, V::set1(0.0f) - square);
  const F half = V::set1(0.5f);
  const F tail = half * t * exp_of<V>(V::fma(V::set1(0.0f) - half, lost, p)) * exp_of<V>(V::set1(0.0f) - half * square);
  return x * V::where_negative(x, tail, one - tail);
}

template <class V>
inline typename V::F activate(Activation activation, typename V::F x) {
  switch (activation) {
    case Activation::gelu:
      return gelu<V>(x);
    case Activation::relu:
      return V::max(V::set1(0.0f), x);
    default:
      return silu<V>(x);
  }
}

}  // namespace
}  // namespace moesaic
