// Sixteen lanes in two AVX2 registers. Included by one translation unit only.
#pragma once

#include <immintrin.h>

#include "kernels.hpp"

#define OCTAVO_INLINE static inline __attribute__((always_inline))
#define OCTAVO_PRAGMA(text) _Pragma(#text)
#define OCTAVO_UNROLL(n) OCTAVO_PRAGMA(GCC unroll n)

namespace octavo::avx2 {

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
struct Mask {
  __m256 a, b;
};

OCTAVO_INLINE F f_set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
OCTAVO_INLINE F f_zero() { return f_set1(0.0f); }
OCTAVO_INLINE F f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_INLINE void f_store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
OCTAVO_INLINE F f_add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
OCTAVO_INLINE F f_sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
OCTAVO_INLINE F f_mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
OCTAVO_INLINE F f_div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
OCTAVO_INLINE F f_max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
OCTAVO_INLINE F f_min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
OCTAVO_INLINE F f_fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
OCTAVO_INLINE F f_fnma(F x, F y, F z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
OCTAVO_INLINE F f_abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
OCTAVO_INLINE F f_from_i(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
OCTAVO_INLINE I i_round(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
OCTAVO_INLINE Mask f_less(F x, F y) {
  return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
OCTAVO_INLINE F f_select(Mask m, F x, F y) {
  return {_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
OCTAVO_INLINE Mask m_range(int lo, int hi) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i upper = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
  const __m256i from = _mm256_set1_epi32(lo - 1), to = _mm256_set1_epi32(hi);
  const auto inside = [&](__m256i x) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(_mm256_cmpgt_epi32(x, from), _mm256_cmpgt_epi32(to, x)));
  };
  return {inside(lane), inside(upper)};
}
OCTAVO_INLINE F f_pow2(I n) {
  const __m256i bias = _mm256_set1_epi32(127);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.a, bias), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.b, bias), 23))};
}
OCTAVO_INLINE float f_sum(F x) {
  const __m256 s = _mm256_add_ps(x.a, x.b);
  const __m128 y = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
OCTAVO_INLINE float f_maximum(F x) {
  const __m256 s = _mm256_max_ps(x.a, x.b);
  const __m128 y = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  const __m128 z = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

OCTAVO_INLINE F f_load_f16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
OCTAVO_INLINE F f_load_bf16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  const auto widen = [](__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  };
  return {widen(_mm_loadu_si128(q)), widen(_mm_loadu_si128(q + 1))};
}
OCTAVO_INLINE F f_load_u8(const void* p) {
  const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
OCTAVO_INLINE F f_load_s8(const void* p) {
  const __m128i x = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}

OCTAVO_INLINE I i_load(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
OCTAVO_INLINE void i_store(void* p, I x) {
  __m256i* q = static_cast<__m256i*>(p);
  _mm256_storeu_si256(q, x.a);
  _mm256_storeu_si256(q + 1, x.b);
}
OCTAVO_INLINE I i_set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
OCTAVO_INLINE I i_or(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
OCTAVO_INLINE I i_and(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
OCTAVO_INLINE I i_add(I x, I y) {
  return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
OCTAVO_INLINE I i_sub(I x, I y) {
  return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
template <int N>
OCTAVO_INLINE I i_sar(I x) { return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)}; }
template <int N>
OCTAVO_INLINE I i_shl(I x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
template <int N>
OCTAVO_INLINE I i_shr(I x) { return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)}; }
OCTAVO_INLINE F f_bits(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
OCTAVO_INLINE I i_expand_bits(const void* p, char value) {
  const __m256i pick = _mm256_set1_epi64x(int64_t(0x8040201008040201ull));
  const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const auto expand = [&](int32_t bits) {
    const __m256i x = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), pick);
    return _mm256_and_si256(_mm256_cmpeq_epi8(x, pick), _mm256_set1_epi8(value));
  };
  int32_t bits[2];
  __builtin_memcpy(bits, p, 8);
  return {expand(bits[0]), expand(bits[1])};
}
template <int Bits>
OCTAVO_INLINE __m256i dot4_half(__m256i acc, __m256i w, __m256i s) {
  if constexpr (Bits <= 6) {  // pairs stay below 2^15: maddubs cannot saturate
    const __m256i pairs = _mm256_maddubs_epi16(w, s);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0xff)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
template <int Bits>
OCTAVO_INLINE I i_dot4(I acc, I weights, int32_t acts) {
  const __m256i s = _mm256_set1_epi32(acts);
  return {dot4_half<Bits>(acc.a, weights.a, s), dot4_half<Bits>(acc.b, weights.b, s)};
}

// Sixteen registers hold four rows of one column, not of both.
constexpr int kTileColumns = 1;
// From how many blocks of four rows on K-quants are unpacked once for all of them.
constexpr int kUnpackBlocks = 2;
// Pairs of products are summed in 16 bits as long as they fit: (2^Bits - 1) · 128 · 2 · quads.
template <int Bits>
constexpr int kRunQuads = Bits <= 4 ? 8 : Bits == 5 ? 4 : Bits == 6 ? 2 : 8;
// |w - 128| · |act| <= 128 · 127 twice fits a signed 16-bit pair; w · act does not.
constexpr bool kCentredBytes = true;
template <int Bits>
OCTAVO_INLINE I run_start(I sum) {
  return Bits <= 6 ? i_set1(0) : sum;
}
template <int Bits>
OCTAVO_INLINE __m256i run_half(__m256i run, __m256i w, __m256i s) {
  if constexpr (Bits <= 6) {
    run = _mm256_add_epi16(run, _mm256_maddubs_epi16(w, s));
  } else {
    const __m256i centred = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    const __m256i size = _mm256_abs_epi8(centred);
    const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(s, centred));
    run = _mm256_add_epi32(run, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  // The sum is wanted now: GCC would put all of them off and spill every product.
  asm volatile("" : "+x"(run));
  return run;
}
template <int Bits>
OCTAVO_INLINE I run_dot4(I run, I weights, int32_t acts) {
  const __m256i s = _mm256_set1_epi32(acts);
  return {run_half<Bits>(run.a, weights.a, s), run_half<Bits>(run.b, weights.b, s)};
}
template <int Bits>
OCTAVO_INLINE I run_end(I sum, I run) {
  if constexpr (Bits > 6) return run;
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(run.a, ones)),
          _mm256_add_epi32(sum.b, _mm256_madd_epi16(run.b, ones))};
}
OCTAVO_INLINE void i_store_s8(void* p, I x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(static_cast<__m128i*>(p), bytes);
}
OCTAVO_INLINE void i_store_s16(void* p, I x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm256_storeu_si256(static_cast<__m256i*>(p), words);
}
OCTAVO_INLINE I i_load_s8_pairs(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(q)), _mm256_cvtepi8_epi16(_mm_loadu_si128(q + 1))};
}
OCTAVO_INLINE I i_dot2(I acc, I pairs, int32_t two) {
  const __m256i s = _mm256_set1_epi32(two);
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(pairs.a, s)),
          _mm256_add_epi32(acc.b, _mm256_madd_epi16(pairs.b, s))};
}
OCTAVO_INLINE int32_t i_sum(I x) {
  const __m256i s = _mm256_add_epi32(x.a, x.b);
  __m128i y = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0x4e));
  y = _mm_add_epi32(y, _mm_shuffle_epi32(y, 0xb1));
  return _mm_cvtsi128_si32(y);
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
OCTAVO_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace octavo::avx2
