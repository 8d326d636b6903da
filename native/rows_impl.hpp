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

// Spreads 32 int8 values over their lane's quads; returns the end of all lanes' quads.
OCTAVO_INLINE uint8_t* store_quads(const I q[2], uint8_t* to, int lanes, int lane) {
  int8_t quants[kGroup];
  i_store_s8(quants, q[0]);
  i_store_s8(quants + 16, q[1]);
  for (int j = 0; j < 8; ++j) __builtin_memcpy(to + 4 * (j * lanes + lane), quants + 4 * j, 4);
  return to + 32 * size_t(lanes);
}

// Scale per (row, group): amax / 127 (wide rows: / (127 · 128)), round to nearest even.
OCTAVO_INLINE void pack_two(F a, F b, const PackedRows& out, int row, int group) {
  const int block = row / out.lanes;
  const int lane = row % out.lanes;
  if (out.floats) {
    float values[kGroup];
    f_store(values, a);
    f_store(values + 16, b);
    float* to = out.floats + size_t(block) * out.float_block_size() +
                size_t(group) * kGroup * out.lanes + lane;
    for (int k = 0; k < kGroup; ++k) to[k * out.lanes] = values[k];
  }
  if (!out.ints) return;
  constexpr float kNarrow = 127.0f, kWide = 127.0f * 128.0f;
  const float steps = out.wide ? kWide : kNarrow;
  const float amax = f_maximum(f_max(f_abs(a), f_abs(b)));
  const float inverse = amax > 0.0f ? steps / amax : 0.0f;
  const float scale = amax / steps;
  I q[2] = {i_round(f_mul(a, f_set1(inverse))), i_round(f_mul(b, f_set1(inverse)))};
  const int32_t first = i_sum(q[0]), second = i_sum(q[1]);
  uint8_t* to = out.ints + size_t(block) * out.int_block_bytes() +
                size_t(group) * out.int_group_bytes();
  if (out.wide) {
    I high[2];
    for (int c = 0; c < 2; ++c) {
      high[c] = i_sar<7>(i_add(q[c], i_set1(64)));
      q[c] = i_sub(q[c], i_shl<7>(high[c]));
    }
    to = store_quads(high, to, out.lanes, lane);
  }
  uint8_t* meta = store_quads(q, to, out.lanes, lane) + 4 * lane;
  const float weighted = scale * float(first + second);
  const int32_t sums[3] = {-(first + second), -first, -second};
  const size_t step = 4 * size_t(out.lanes);
  __builtin_memcpy(meta, &scale, 4);
  __builtin_memcpy(meta + step, &weighted, 4);
  for (int i = 0; i < 3; ++i) __builtin_memcpy(meta + (2 + i) * step, &sums[i], 4);
}

static void pack_group(const float* values, const PackedRows& out, int row, int group) {
  pack_two(f_load(values), f_load(values + 16), out, row, group);
}

static void norm_pack(const float* x, const float* weight, int size, float eps,
                      const PackedRows& out, int row) {
  F squares = f_zero();
  for (int i = 0; i < out.groups * kGroup; i += 16) {
    const F v = f_load(x + i);
    squares = f_fma(v, v, squares);
  }
  const float mean = f_sum(squares) / float(size);
  const F factor = f_set1(1.0f / __builtin_sqrtf(mean + eps));
  for (int g = 0; g < out.groups; ++g) {
    const int i = g * kGroup;
    const F a = f_mul(f_mul(f_load(x + i), factor), f_load(weight + i));
    const F b = f_mul(f_mul(f_load(x + i + 16), factor), f_load(weight + i + 16));
    pack_two(a, b, out, row, g);
  }
}

OCTAVO_INLINE F silu_times(F gate, F up) {
  const F one = f_set1(1.0f);
  return f_mul(f_div(gate, f_add(one, f_exp(f_sub(f_zero(), gate)))), up);
}

static void gate_pack(const float* gate, const float* up, int row_begin, int row_end,
                      const PackedRows& out, int group) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* g = gate + size_t(row - row_begin) * kPanel;
    const float* u = up + size_t(row - row_begin) * kPanel;
    pack_two(silu_times(f_load(g), f_load(u)), silu_times(f_load(g + 16), f_load(u + 16)), out,
             row, group);
  }
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
