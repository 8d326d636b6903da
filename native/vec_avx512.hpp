// Sixteen lanes in one AVX-512 register. Included by one translation unit only.
#pragma once

#include <immintrin.h>

#include "kernels.hpp"

#define OCTAVO_INLINE static inline __attribute__((always_inline))
#define OCTAVO_PRAGMA(text) _Pragma(#text)
#define OCTAVO_UNROLL(n) OCTAVO_PRAGMA(GCC unroll n)

namespace octavo::avx512vnni {

using F = __m512;
using I = __m512i;
using Mask = __mmask16;

OCTAVO_INLINE F f_zero() { return _mm512_setzero_ps(); }
OCTAVO_INLINE F f_set1(float x) { return _mm512_set1_ps(x); }
OCTAVO_INLINE F f_load(const float* p) { return _mm512_loadu_ps(p); }
OCTAVO_INLINE void f_store(float* p, F x) { _mm512_storeu_ps(p, x); }
OCTAVO_INLINE F f_add(F a, F b) { return _mm512_add_ps(a, b); }
OCTAVO_INLINE F f_sub(F a, F b) { return _mm512_sub_ps(a, b); }
OCTAVO_INLINE F f_mul(F a, F b) { return _mm512_mul_ps(a, b); }
OCTAVO_INLINE F f_div(F a, F b) { return _mm512_div_ps(a, b); }
OCTAVO_INLINE F f_fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
OCTAVO_INLINE F f_fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
OCTAVO_INLINE F f_max(F a, F b) { return _mm512_max_ps(a, b); }
OCTAVO_INLINE F f_min(F a, F b) { return _mm512_min_ps(a, b); }
OCTAVO_INLINE F f_abs(F a) { return _mm512_abs_ps(a); }
OCTAVO_INLINE F f_from_i(I a) { return _mm512_cvtepi32_ps(a); }
OCTAVO_INLINE I i_round(F a) { return _mm512_cvtps_epi32(a); }
OCTAVO_INLINE Mask f_less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
OCTAVO_INLINE F f_select(Mask m, F a, F b) { return _mm512_mask_blend_ps(m, b, a); }
// Lanes [lo, hi), clamped to the vector.
OCTAVO_INLINE Mask m_range(int lo, int hi) {
  const unsigned below_hi = hi >= 16 ? 0xffffu : hi <= 0 ? 0u : (1u << hi) - 1;
  const unsigned below_lo = lo >= 16 ? 0xffffu : lo <= 0 ? 0u : (1u << lo) - 1;
  return Mask(below_hi & ~below_lo);
}
OCTAVO_INLINE F f_pow2(I n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
// Halves are folded 8, 4, 2, 1: the order of every unit.
OCTAVO_INLINE float f_sum(F a) {
  const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 z = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
OCTAVO_INLINE float f_maximum(F a) { return _mm512_reduce_max_ps(a); }

OCTAVO_INLINE F f_load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
OCTAVO_INLINE F f_load_bf16(const void* p) {
  const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
OCTAVO_INLINE F f_load_u8(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}
OCTAVO_INLINE F f_load_s8(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
}

OCTAVO_INLINE I i_load(const void* p) { return _mm512_loadu_si512(p); }
OCTAVO_INLINE void i_store(void* p, I x) { _mm512_storeu_si512(p, x); }
OCTAVO_INLINE I i_set1(int32_t x) { return _mm512_set1_epi32(x); }
OCTAVO_INLINE I i_or(I a, I b) { return _mm512_or_si512(a, b); }
OCTAVO_INLINE I i_and(I a, I b) { return _mm512_and_si512(a, b); }
OCTAVO_INLINE I i_add(I a, I b) { return _mm512_add_epi32(a, b); }
OCTAVO_INLINE I i_sub(I a, I b) { return _mm512_sub_epi32(a, b); }
template <int N>
OCTAVO_INLINE I i_sar(I a) { return _mm512_srai_epi32(a, N); }
template <int N>
OCTAVO_INLINE I i_shl(I a) { return _mm512_slli_epi32(a, N); }
template <int N>
OCTAVO_INLINE I i_shr(I a) { return _mm512_srli_epi32(a, N); }
OCTAVO_INLINE F f_bits(I a) { return _mm512_castsi512_ps(a); }
// 64 bits → 64 bytes of 0 or `value`.
OCTAVO_INLINE I i_expand_bits(const void* p, char value) {
  uint64_t bits;
  __builtin_memcpy(&bits, p, 8);
  return _mm512_maskz_mov_epi8(bits, _mm512_set1_epi8(value));
}
// acc + Σ of four u8 · s8 per lane; weights below 2^Bits.
template <int Bits>
OCTAVO_INLINE I i_dot4(I acc, I weights, int32_t acts) {
  return _mm512_dpbusd_epi32(acc, weights, _mm512_set1_epi32(acts));
}
// How many of a panel's two columns a tile of four rows holds in registers.
constexpr int kTileColumns = 2;
// From how many blocks of four rows on K-quants are unpacked once for all of them.
constexpr int kUnpackBlocks = 12;
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
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
OCTAVO_INLINE void i_store_s16(void* p, I x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
}
// Two bytes per lane, widened to 16 bits each.
OCTAVO_INLINE I i_load_s8_pairs(const void* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
// acc + Σ of two s16 · s16 per lane.
OCTAVO_INLINE I i_dot2(I acc, I pairs, int32_t two) {
  acc = _mm512_dpwssd_epi32(acc, pairs, _mm512_set1_epi32(two));
  asm("" : "+v"(acc));  // GCC would copy each sum before and after
  return acc;
}
OCTAVO_INLINE int32_t i_sum(I a) { return _mm512_reduce_add_epi32(a); }
// 32 int8 of four rows → [8][4] quads; sums of each row's halves.
OCTAVO_INLINE void i_store_quads(uint8_t* to, const I q[4][2], int32_t sums[4][2]) {
  I rows[2];
  for (int i = 0; i < 2; ++i) {
    const __m256i a = _mm256_set_m128i(_mm512_cvtepi32_epi8(q[2 * i][1]),
                                       _mm512_cvtepi32_epi8(q[2 * i][0]));
    const __m256i b = _mm256_set_m128i(_mm512_cvtepi32_epi8(q[2 * i + 1][1]),
                                       _mm512_cvtepi32_epi8(q[2 * i + 1][0]));
    rows[i] = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    I sum = _mm512_dpbusd_epi32(i_set1(0), _mm512_set1_epi8(1), rows[i]);
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_CDAB));
    const I first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128i four = _mm512_castsi512_si128(_mm512_permutexvar_epi32(first, sum));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums[2 * i]), four);
  }
  const I low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  const I high = _mm512_add_epi32(low, i_set1(4));
  i_store(to, _mm512_permutex2var_epi32(rows[0], low, rows[1]));
  i_store(to + 64, _mm512_permutex2var_epi32(rows[0], high, rows[1]));
}
OCTAVO_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace octavo::avx512vnni
