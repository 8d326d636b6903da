// Sixteen lanes in plain C++: the portable unit and the slow twin of the others.
#pragma once

#include "kernels.hpp"

// Left to the compiler: forcing sixteen-lane loops inline costs minutes of build time.
#define OCTAVO_INLINE [[maybe_unused]] static __attribute__((noinline))
#define OCTAVO_UNROLL(n)

namespace octavo::scalar {

struct F {
  float v[16];
};
struct I {
  int32_t v[16];
};
struct Mask {
  bool v[16];
};

template <class Out, class Fn>
static inline __attribute__((always_inline)) Out each(Fn fn) {
  Out out;
  for (int i = 0; i < 16; ++i) out.v[i] = fn(i);
  return out;
}

OCTAVO_INLINE F f_set1(float x) { return each<F>([&](int) { return x; }); }
OCTAVO_INLINE F f_zero() { return f_set1(0.0f); }
OCTAVO_INLINE F f_load(const float* p) { return each<F>([&](int i) { return p[i]; }); }
OCTAVO_INLINE void f_store(float* p, F x) { __builtin_memcpy(p, x.v, sizeof x.v); }
OCTAVO_INLINE F f_add(F a, F b) { return each<F>([&](int i) { return a.v[i] + b.v[i]; }); }
OCTAVO_INLINE F f_sub(F a, F b) { return each<F>([&](int i) { return a.v[i] - b.v[i]; }); }
OCTAVO_INLINE F f_mul(F a, F b) { return each<F>([&](int i) { return a.v[i] * b.v[i]; }); }
OCTAVO_INLINE F f_div(F a, F b) { return each<F>([&](int i) { return a.v[i] / b.v[i]; }); }
OCTAVO_INLINE F f_fma(F a, F b, F c) {
  return each<F>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
OCTAVO_INLINE F f_fnma(F a, F b, F c) {
  return each<F>([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}
OCTAVO_INLINE F f_max(F a, F b) {
  return each<F>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
OCTAVO_INLINE F f_min(F a, F b) {
  return each<F>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
OCTAVO_INLINE F f_abs(F a) { return each<F>([&](int i) { return __builtin_fabsf(a.v[i]); }); }
OCTAVO_INLINE F f_from_i(I a) { return each<F>([&](int i) { return float(a.v[i]); }); }
// Adding 1.5 · 2^23 rounds to nearest even for |x| < 2^22.
OCTAVO_INLINE I i_round(F a) {
  return each<I>([&](int i) { return int32_t((a.v[i] + 12582912.0f) - 12582912.0f); });
}
OCTAVO_INLINE Mask f_less(F a, F b) {
  return each<Mask>([&](int i) { return a.v[i] < b.v[i]; });
}
OCTAVO_INLINE F f_select(Mask m, F a, F b) {
  return each<F>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}
OCTAVO_INLINE Mask m_range(int lo, int hi) {
  return each<Mask>([&](int i) { return lo <= i && i < hi; });
}
OCTAVO_INLINE F f_bits(I a) {
  F out;
  __builtin_memcpy(out.v, a.v, sizeof out.v);
  return out;
}
OCTAVO_INLINE F f_pow2(I n) {
  return f_bits(each<I>([&](int i) { return (n.v[i] + 127) << 23; }));
}
OCTAVO_INLINE float f_sum(F a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
  }
  return a.v[0];
}
OCTAVO_INLINE float f_maximum(F a) {
  float best = a.v[0];
  for (int i = 1; i < 16; ++i) best = a.v[i] > best ? a.v[i] : best;
  return best;
}

OCTAVO_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  uint32_t bits = uint32_t(h & 0x7fff) << 13;
  float x;
  if ((h & 0x7c00) == 0x7c00) {
    bits += 0x70000000;  // infinity and NaN
    __builtin_memcpy(&x, &bits, 4);
  } else {
    __builtin_memcpy(&x, &bits, 4);
    x *= 0x1p112f;  // exact, subnormals included
  }
  __builtin_memcpy(&bits, &x, 4);
  bits |= sign;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
OCTAVO_INLINE F f_load_f16(const void* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof h);
  return each<F>([&](int i) { return half_to_float(h[i]); });
}
OCTAVO_INLINE F f_load_bf16(const void* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof h);
  return f_bits(each<I>([&](int i) { return int32_t(uint32_t(h[i]) << 16); }));
}
OCTAVO_INLINE F f_load_u8(const void* p) {
  return each<F>([&](int i) { return float(static_cast<const uint8_t*>(p)[i]); });
}
OCTAVO_INLINE F f_load_s8(const void* p) {
  return each<F>([&](int i) { return float(static_cast<const int8_t*>(p)[i]); });
}

OCTAVO_INLINE I i_load(const void* p) {
  I out;
  __builtin_memcpy(out.v, p, sizeof out.v);
  return out;
}
OCTAVO_INLINE void i_store(void* p, I x) { __builtin_memcpy(p, x.v, sizeof x.v); }
OCTAVO_INLINE I i_set1(int32_t x) { return each<I>([&](int) { return x; }); }
OCTAVO_INLINE I i_or(I a, I b) { return each<I>([&](int i) { return a.v[i] | b.v[i]; }); }
OCTAVO_INLINE I i_and(I a, I b) { return each<I>([&](int i) { return a.v[i] & b.v[i]; }); }
OCTAVO_INLINE I i_add(I a, I b) { return each<I>([&](int i) { return a.v[i] + b.v[i]; }); }
OCTAVO_INLINE I i_sub(I a, I b) { return each<I>([&](int i) { return a.v[i] - b.v[i]; }); }
template <int N>
OCTAVO_INLINE I i_sar(I a) {
  return each<I>([&](int i) { return a.v[i] >> N; });
}
template <int N>
OCTAVO_INLINE I i_shl(I a) {
  return each<I>([&](int i) { return int32_t(uint32_t(a.v[i]) << N); });
}
template <int N>
OCTAVO_INLINE I i_shr(I a) {
  return each<I>([&](int i) { return int32_t(uint32_t(a.v[i]) >> N); });
}
OCTAVO_INLINE I i_expand_bits(const void* p, char value) {
  const uint8_t* bits = static_cast<const uint8_t*>(p);
  I out;
  uint8_t bytes[64];
  for (int i = 0; i < 64; ++i) bytes[i] = (bits[i / 8] >> (i % 8)) & 1 ? uint8_t(value) : 0;
  __builtin_memcpy(out.v, bytes, sizeof bytes);
  return out;
}
template <int Bits>
OCTAVO_INLINE I i_dot4(I acc, I weights, int32_t acts) {
  for (int k = 0; k < 4; ++k) {
    const int32_t s = int8_t(acts >> (8 * k));
    for (int i = 0; i < 16; ++i) acc.v[i] += ((weights.v[i] >> (8 * k)) & 0xff) * s;
  }
  return acc;
}
// How many of a panel's two columns a tile of four rows holds in registers.
constexpr int kTileColumns = 2;
// From how many blocks of four rows on K-quants are unpacked once for all of them.
constexpr int kUnpackBlocks = 2;
// A run of quads whose products may be summed before they are added to the 32-bit sums.
template <int Bits>
constexpr int kRunQuads = 8;
// Whether bytes are taken as w - 128, so that no offset is owed for them.
constexpr bool kCentredBytes = false;
template <int Bits>
OCTAVO_INLINE I run_start(I sum) { return sum; }
template <int Bits>
OCTAVO_INLINE I run_dot4(I run, I weights, int32_t acts) { return i_dot4<Bits>(run, weights, acts); }
template <int Bits>
OCTAVO_INLINE I run_end(I, I run) { return run; }
OCTAVO_INLINE void i_store_s8(void* p, I x) {
  for (int i = 0; i < 16; ++i) static_cast<int8_t*>(p)[i] = int8_t(x.v[i]);
}
OCTAVO_INLINE void i_store_s16(void* p, I x) {
  for (int i = 0; i < 16; ++i) static_cast<int16_t*>(p)[i] = int16_t(x.v[i]);
}
OCTAVO_INLINE I i_load_s8_pairs(const void* p) {
  const int8_t* bytes = static_cast<const int8_t*>(p);
  return each<I>([&](int i) {
    return int32_t(uint16_t(bytes[2 * i]) | uint32_t(uint16_t(bytes[2 * i + 1])) << 16);
  });
}
OCTAVO_INLINE I i_dot2(I acc, I pairs, int32_t two) {
  return each<I>([&](int i) {
    return acc.v[i] + int16_t(pairs.v[i]) * int16_t(two) + (pairs.v[i] >> 16) * (two >> 16);
  });
}
OCTAVO_INLINE int32_t i_sum(I a) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += a.v[i];
  return sum;
}
OCTAVO_INLINE void i_store_quads(uint8_t* to, const I q[4][2], int32_t sums[4][2]) {
  for (int r = 0; r < 4; ++r) {
    int8_t row[32];
    for (int c = 0; c < 2; ++c) {
      i_store_s8(row + 16 * c, q[r][c]);
      sums[r][c] = i_sum(q[r][c]);
    }
    for (int j = 0; j < 8; ++j) __builtin_memcpy(to + 4 * (j * 4 + r), row + 4 * j, 4);
  }
}
OCTAVO_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace octavo::scalar
