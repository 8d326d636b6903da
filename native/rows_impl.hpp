// Row-wise kernels: exp, RMS norm, quantisation of activations, the gated activation.
#pragma once

// exp for x ≤ 88; exp(0) = 1; below −87 exactly 0, so that masked scores of −inf add nothing.
OCTAVO_INLINE F f_exp(F x) {
  const Mask vanished = f_less(x, f_set1(-87.0f));
  x = f_min(f_max(x, f_set1(-87.0f)), f_set1(88.0f));
  const F magic = f_set1(12582912.0f);  // 1.5 · 2^23: the sum is rounded to an integer
  const F n = f_sub(f_add(f_mul(x, f_set1(1.44269504f)), magic), magic);
  F r = f_fnma(n, f_set1(0.693359375f), x);
  r = f_fnma(n, f_set1(-2.12194440e-4f), r);
  F p = f_set1(1.0f / 5040);
  p = f_fma(p, r, f_set1(1.0f / 720));
  p = f_fma(p, r, f_set1(1.0f / 120));
  p = f_fma(p, r, f_set1(1.0f / 24));
  p = f_fma(p, r, f_set1(1.0f / 6));
  p = f_fma(p, r, f_set1(0.5f));
  p = f_fma(p, r, f_set1(1.0f));
  p = f_fma(p, r, f_set1(1.0f));
  return f_select(vanished, f_zero(), f_mul(p, f_pow2(i_round(n))));
}

// Stores the values of one row, 32 int8 in two vectors, as quads of its lane; sums of the halves.
OCTAVO_INLINE void store_row(const I q[2], int lanes, int lane, uint8_t* to, int32_t sums[2]) {
  int8_t quants[kGroup];
  for (int c = 0; c < 2; ++c) {
    i_store_s8(quants + 16 * c, q[c]);
    sums[c] = i_sum(q[c]);
  }
  for (int j = 0; j < 8; ++j) __builtin_memcpy(to + 4 * (j * lanes + lane), quants + 4 * j, 4);
}

// The scales of one group of R rows and the rounded values, in units of a wide or narrow step.
template <int R>
struct Quantised {
  float scale[R];
  int32_t wide[R];
  I low[R][2];
  I high[R][2];
};

// Scale per (row, group): amax / 127, in wide groups / (127 · 128); round to nearest even.
template <int R>
OCTAVO_INLINE bool quantise(const F values[R][2], const float limits[R], Quantised<R>& out) {
  bool any = false;
  for (int r = 0; r < R; ++r) {
    const float amax = f_maximum(f_max(f_abs(values[r][0]), f_abs(values[r][1])));
    out.wide[r] = amax > limits[r];
    any |= out.wide[r] != 0;
    const float steps = out.wide[r] ? 127.0f * 128.0f : 127.0f;
    const float inverse = amax > 0.0f ? steps / amax : 0.0f;
    out.scale[r] = amax / steps;
    for (int c = 0; c < 2; ++c) {
      out.low[r][c] = i_round(f_mul(values[r][c], f_set1(inverse)));
      out.high[r][c] = i_set1(0);
    }
    if (!out.wide[r]) continue;
    for (int c = 0; c < 2; ++c) {
      out.high[r][c] = i_sar<7>(i_add(out.low[r][c], i_set1(64)));
      out.low[r][c] = i_sub(out.low[r][c], i_shl<7>(out.high[r][c]));
    }
  }
  return any;
}

// One group of R rows from `row` on: a whole block, or one lane of it.
template <int R>
OCTAVO_INLINE void pack_ints(const F values[R][2], const float limits[R], const PackedRows& out,
                             int row, int group) {
  const int lanes = out.lanes, lane = row % lanes;
  uint8_t* low = out.ints + size_t(row / lanes) * out.int_block_bytes() +
                 size_t(group) * out.int_group_bytes();
  uint8_t* meta = low + 32 * size_t(lanes);
  uint8_t* high = meta + 32 * size_t(lanes);
  Quantised<R> q;
  const bool any = quantise<R>(values, limits, q);
  int32_t sums[R][2], high_sums[R][2] = {};
  if constexpr (R == 4) {
    i_store_quads(low, q.low, sums);
    if (any) i_store_quads(high, q.high, high_sums);
  } else {
    store_row(q.low[0], lanes, lane, low, sums[0]);
    store_row(q.high[0], lanes, lane, high, high_sums[0]);
  }
  float weighted[R];
  int32_t whole[3][R];
  for (int r = 0; r < R; ++r) {
    const int32_t first = sums[r][0] + 128 * high_sums[r][0];
    const int32_t second = sums[r][1] + 128 * high_sums[r][1];
    weighted[r] = q.scale[r] * float(first + second);
    whole[0][r] = -(first + second);
    whole[1][r] = -first;
    whole[2][r] = -second;
  }
  const size_t step = 4 * size_t(lanes);
  meta += 4 * lane;
  __builtin_memcpy(meta, q.scale, 4 * R);
  __builtin_memcpy(meta + step, weighted, 4 * R);
  for (int i = 0; i < 3; ++i) __builtin_memcpy(meta + (2 + i) * step, whole[i], 4 * R);
  __builtin_memcpy(meta + 5 * step, q.wide, 4 * R);
}

template <int R>
OCTAVO_INLINE void pack_values(const F values[R][2], const float limits[R], const PackedRows& out,
                               int row, int group) {
  if (out.ints) pack_ints<R>(values, limits, out, row, group);
  if (!out.floats) return;
  for (int r = 0; r < R; ++r) {
    float line[kGroup];
    f_store(line, values[r][0]);
    f_store(line + 16, values[r][1]);
    float* to = out.floats + size_t(row / out.lanes) * out.float_block_size() +
                size_t(group) * kGroup * out.lanes + row % out.lanes + r;
    for (int k = 0; k < kGroup; ++k) to[k * out.lanes] = line[k];
  }
}

static void pack_group(const float* values, float limit, const PackedRows& out, int row,
                       int group) {
  const F v[1][2] = {{f_load(values), f_load(values + 16)}};
  pack_values<1>(v, &limit, out, row, group);
}

template <int R>
OCTAVO_INLINE void norm_rows(const Norm& norm, const float* x, const PackedRows& out, int row,
                             float* rms) {
  F factor[R];
  float limit[R];
  for (int r = 0; r < R; ++r) {
    F squares = f_zero(), weighted = f_zero();
    for (int i = 0; i < out.groups * kGroup; i += 16) {
      const F v = f_load(x + size_t(r) * norm.stride + i);
      const F y = f_mul(v, f_load(norm.weight + i));
      squares = f_fma(v, v, squares);
      weighted = f_fma(y, y, weighted);
    }
    const float mean = f_sum(squares) / float(norm.size);
    const float scale = 1.0f / __builtin_sqrtf(mean + norm.eps);
    factor[r] = f_set1(scale);
    limit[r] = norm.wide * scale * __builtin_sqrtf(f_sum(weighted) / float(norm.size));
    rms[r] = __builtin_sqrtf(mean);
  }
  for (int i = 0; i < out.groups * kGroup; i += kGroup) {
    F y[R][2];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < 2; ++c) {
        const F v = f_load(x + size_t(r) * norm.stride + i + 16 * c);
        y[r][c] = f_mul(f_mul(v, factor[r]), f_load(norm.weight + i + 16 * c));
      }
    }
    pack_values<R>(y, limit, out, row, i / kGroup);
  }
}

static void norm_pack(const Norm& norm, const float* x, const PackedRows& out, int block,
                      float* rms) {
  if (out.lanes == 4) {
    norm_rows<4>(norm, x, out, 4 * block, rms);
  } else {
    norm_rows<1>(norm, x, out, block, rms);
  }
}

OCTAVO_INLINE F silu_times(F gate, F up) {
  const F one = f_set1(1.0f);
  return f_mul(f_div(gate, f_add(one, f_exp(f_sub(f_zero(), gate)))), up);
}

template <int R>
OCTAVO_INLINE void gate_rows(const GatePanel& p, const PackedRows& out, int row, int group) {
  F values[R][2];
  float limits[R];
  for (int r = 0; r < R; ++r) {
    const size_t at = size_t(row + r - p.row_begin) * kPanel;
    for (int c = 0; c < 2; ++c) {
      values[r][c] = silu_times(f_load(p.gate + at + 16 * c), f_load(p.up + at + 16 * c));
    }
    limits[r] = p.rms[row + r] * p.wide;
  }
  pack_values<R>(values, limits, out, row, group);
}

static void gate_pack(const GatePanel& p, const PackedRows& out, int group) {
  int row = p.row_begin;
  for (; row + 4 <= p.row_end && out.lanes == 4; row += 4) gate_rows<4>(p, out, row, group);
  for (; row < p.row_end; ++row) gate_rows<1>(p, out, row, group);
}

static double probe_int8(int repeats) {
  I sum[16];
  for (int i = 0; i < 16; ++i) sum[i] = i_set1(i);
  const I weights = i_set1(0x01020304);
  for (int n = 0; n < repeats; ++n) {
  OCTAVO_UNROLL(16)
    for (int i = 0; i < 16; ++i) sum[i] = i_dot4<8>(sum[i], weights, n);
  }
  int32_t total = 0;
  for (int i = 0; i < 16; ++i) total += i_sum(sum[i]);
  return double(repeats) * 16 * 64 * 2 + (total == 12345 ? 1 : 0);
}
