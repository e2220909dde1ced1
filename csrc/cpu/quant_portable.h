// The quantized weight formats in plain C++: four lanes.
#pragma once

#include "quant_layout.h"
#include "vec_portable.h"

namespace moesaic {
namespace {

constexpr float kInt4Values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
constexpr float kE2m1Values[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};

// A table, because moving bits would make denormal floats, which are slow to compute with.
struct E4m3Values {
  float values[256] = {};
  constexpr E4m3Values() {
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15, mantissa = code & 7;
      float value = static_cast<float>(exponent == 0 ? mantissa : 8 + mantissa) / 512.0f;
      for (int i = 1; i < exponent; ++i) {
        value *= 2.0f;
      }
      values[code] = code < 128 ? value : -value;
    }
  }
};
constexpr E4m3Values kE4m3;

inline float half_to_float(uint16_t bits) { return element({&bits, WeightFormat::fp16}, 0); }

// A step is 32 codes, one group at most.
template <class V, class Self>
struct Nibbles : NibbleFormat {
  static constexpr Scale kScale = Scale::step;
  static constexpr int kVectors = 8;
  static constexpr int64_t kStep = 32;

  static void load(const Row& row, int64_t k, typename V::F out[]) { unpack(row, row.codes + k / 2, k, out); }
  static void load_part(const Row& row, int64_t k, int64_t count, typename V::F out[]) {
    uint8_t rest[16] = {};
    __builtin_memcpy(rest, row.codes + k / 2, static_cast<size_t>((count + 1) / 2));
    unpack(row, rest, k, out);
  }
  static typename V::F scale_part(const Row& row, int64_t k, int64_t) { return Self::scale(row, k); }
  static int64_t place(int64_t k) { return nibble_place(k, V::kWidth); }

 private:
  static void unpack(const Row& row, const uint8_t* codes, int64_t k, typename V::F out[]) {
    const float zero = Self::zero(row, k);
    for (int v = 0; v < kVectors; ++v) {
      const int shift = v % 2 * 4;
      const uint8_t* at = codes + v / 2;  // a word is four bytes
      const float lanes[] = {Self::kValues[at[0] >> shift & 15], Self::kValues[at[4] >> shift & 15],
                             Self::kValues[at[8] >> shift & 15], Self::kValues[at[12] >> shift & 15]};
      out[v] = V::load(lanes) - V::set1(zero);
    }
  }
};

template <class V, class Self>
struct Int4Lanes : Nibbles<V, Self> {
  static constexpr const float* kValues = kInt4Values;
  static typename V::F scale(const QuantRow& row, int64_t k) {
    return V::set1(half_to_float(read<uint16_t>(row.scales + 2 * (k >> row.group_shift))));
  }
};

template <class V>
struct Int4 : Int4Lanes<V, Int4<V>> {
  static float zero(const QuantRow&, int64_t) { return 0.0f; }
};

template <class V>
struct Int4Zero : Int4Lanes<V, Int4Zero<V>> {
  static float zero(const QuantRow& row, int64_t k) { return kInt4Values[zero_bits(row, k, 1) & 15]; }
};

template <class V>
struct Mxfp4 : Nibbles<V, Mxfp4<V>> {
  static constexpr const float* kValues = kE2m1Values;
  static float zero(const QuantRow&, int64_t) { return 0.0f; }
  // The byte is a float's exponent: the lowest one, 2^-127, gives zero instead.
  static typename V::F scale(const QuantRow& row, int64_t k) {
    const uint32_t bits = static_cast<uint32_t>(row.scales[k / kMxfp4Group]) << 23;
    return V::set1(read<float>(&bits));
  }
};

template <class V>
struct Int8 : ByteFormat {
  static constexpr Scale kScale = Scale::row;
  static constexpr int kVectors = 4;
  static constexpr int64_t kStep = 16;

  static void load(const Row& row, int64_t k, typename V::F out[]) { widen(row.codes + k, out); }
  static void load_part(const Row& row, int64_t k, int64_t count, typename V::F out[]) {
    uint8_t rest[kStep] = {};
    __builtin_memcpy(rest, row.codes + k, static_cast<size_t>(count));
    widen(rest, out);
  }
  static float row_scale(const Row& row) { return read<float>(row.scales); }
  static int64_t place(int64_t k) { return k; }

 private:
  static void widen(const uint8_t* codes, typename V::F out[]) {
    float lanes[kStep];
    for (int i = 0; i < kStep; ++i) {
      lanes[i] = static_cast<float>(static_cast<int8_t>(codes[i]));
    }
    for (int v = 0; v < kVectors; ++v) {
      out[v] = V::load(lanes + v * V::kWidth);
    }
  }
};

template <class V>
struct Fp8 : ByteFormat {
  static constexpr Scale kScale = Scale::step;
  static constexpr int kVectors = 4;
  static constexpr int64_t kStep = 16;

  static void load(const Row& row, int64_t k, typename V::F out[]) { widen(row.codes + k, out); }
  static void load_part(const Row& row, int64_t k, int64_t count, typename V::F out[]) {
    uint8_t rest[kStep] = {};
    __builtin_memcpy(rest, row.codes + k, static_cast<size_t>(count));
    widen(rest, out);
  }
  static typename V::F scale(const Row& row, int64_t k) {
    return V::set1(read<float>(row.scales + k / kFp8Tile * 4));
  }
  static typename V::F scale_part(const Row& row, int64_t k, int64_t) { return scale(row, k); }
  static int64_t place(int64_t k) { return k; }

 private:
  static void widen(const uint8_t* codes, typename V::F out[]) {
    float lanes[kStep];
    for (int i = 0; i < kStep; ++i) {
      lanes[i] = kE4m3.values[codes[i]];
    }
    for (int v = 0; v < kVectors; ++v) {
      out[v] = V::load(lanes + v * V::kWidth);
    }
  }
};

}  // namespace
}  // namespace moesaic
