// Attention of one KV head from the paged cache.
//
// Per row, positions are taken in segments of 256 aligned to 0: scores of the whole segment, one
// softmax, one weighted sum; segments merge in ascending order. A row's bits depend only on its own
// visible positions: a masked position adds exactly 0, a segment without visible ones is skipped.
#pragma once

OCTAVO_INLINE int imin(int a, int b) { return a < b ? a : b; }
OCTAVO_INLINE int imax(int a, int b) { return a > b ? a : b; }

struct Span {
  int lo, hi;
};

OCTAVO_INLINE Span visible(const Attention& a, int row) {
  const int position = a.position[row];
  const int lo = a.window > 0 ? position - a.window + 1 : 0;
  return {imax(lo, a.first_position), position + 1};
}

// The head's K and V of the page that holds `position`, and the place of the position in it.
struct PageView {
  const uint8_t* k;
  const uint8_t* v;
  int offset;
};

OCTAVO_INLINE PageView page_view(const Attention& a, int position) {
  const int relative = position - a.first_position;
  const int entry = relative / a.block_size;
  const uint8_t* k = a.layer + size_t(a.table[entry]) * a.page_bytes + a.head_offset;
  return {k, k + size_t(a.block_size) * a.head_dim * 2, relative - entry * a.block_size};
}

// Scores of R rows against the 16 positions of each of T tiles; K pairs are [head_dim / 2][16][2].
// Two tiles at a time share the broadcasts of q.
// Few rows mean decoding: pages come from memory, so lines of the next K and of V are fetched
// meanwhile.
template <int R, int T>
OCTAVO_INLINE void score_tiles(const float* const* q, int head_dim, const uint8_t* const k[T],
                               const uint8_t* const ahead[2], const uint8_t* const v[T],
                               F score[T][R]) {
  F even[T][R], odd[T][R];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) even[t][r] = odd[t][r] = f_zero();
  }
  const I high = i_set1(int32_t(0xffff0000u));
  for (int d = 0; d < head_dim; d += 2) {
    if constexpr (R < 4) {
      prefetch(ahead[0] + size_t(d) * 32);
      prefetch(ahead[1] + size_t(d) * 32);
      for (int t = 0; t < T; ++t) prefetch(v[t] + size_t(d) * 32);
    }
    F k0[T], k1[T];
    OCTAVO_UNROLL(2)
    for (int t = 0; t < T; ++t) {
      const I pair = i_load(k[t] + size_t(d) * 32);
      k0[t] = f_bits(i_shl<16>(pair));
      k1[t] = f_bits(i_and(pair, high));
    }
    OCTAVO_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      const F q0 = f_set1(q[r][d]), q1 = f_set1(q[r][d + 1]);
      OCTAVO_UNROLL(2)
      for (int t = 0; t < T; ++t) {
        even[t][r] = f_fma(q0, k0[t], even[t][r]);
        odd[t][r] = f_fma(q1, k1[t], odd[t][r]);
      }
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) score[t][r] = f_add(even[t][r], odd[t][r]);
  }
}

// sums[r][0 .. 16·Vectors) += Σ p · V over positions [lo, hi), from dimension d on.
template <int R, int Vectors>
OCTAVO_INLINE void weigh_values(const Attention& a, const float* p, int segment, Span span, int d,
                                float* sums) {
  F acc[R][Vectors];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < Vectors; ++i) acc[r][i] = f_zero();
  }
  const I high = i_set1(int32_t(0xffff0000u));
  const size_t pair_bytes = size_t(a.head_dim) * 4;
  // Pairs outside [lo, hi) are never read, half pairs only on their own side: an unwritten slot
  // may hold NaN.
  for (int tile = span.lo & ~(kTile - 1); tile < span.hi; tile += kTile) {
    const PageView page = page_view(a, tile);
    const uint8_t* v = page.v + size_t(page.offset / 2) * pair_bytes + size_t(d) * 4;
    const int begin = imax(span.lo, tile), end = imin(span.hi, tile + kTile);
    int t = begin;
    if (t & 1) {
      for (int i = 0; i < Vectors; ++i) {
        const F v1 = f_bits(i_and(i_load(v + (t - tile) / 2 * pair_bytes + 64 * i), high));
        for (int r = 0; r < R; ++r) {
          acc[r][i] = f_fma(f_set1(p[r * kSegment + t - segment]), v1, acc[r][i]);
        }
      }
      ++t;
    }
    for (; t + 1 < end; t += 2) {
      const uint8_t* pairs = v + (t - tile) / 2 * pair_bytes;
    OCTAVO_UNROLL(4)
      for (int i = 0; i < Vectors; ++i) {
        const I pair = i_load(pairs + 64 * i);
        const F v0 = f_bits(i_shl<16>(pair));
        const F v1 = f_bits(i_and(pair, high));
    OCTAVO_UNROLL(4)
        for (int r = 0; r < R; ++r) {
          const float* weight = p + r * kSegment + t - segment;
          acc[r][i] = f_fma(f_set1(weight[0]), v0, acc[r][i]);
          acc[r][i] = f_fma(f_set1(weight[1]), v1, acc[r][i]);
        }
      }
    }
    if (t < end) {
      for (int i = 0; i < Vectors; ++i) {
        const F v0 = f_bits(i_shl<16>(i_load(v + (t - tile) / 2 * pair_bytes + 64 * i)));
        for (int r = 0; r < R; ++r) {
          acc[r][i] = f_fma(f_set1(p[r * kSegment + t - segment]), v0, acc[r][i]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    float* out = sums + size_t(r) * a.head_dim + d;
    for (int i = 0; i < Vectors; ++i) f_store(out + 16 * i, acc[r][i]);
  }
}

// Masked scores of R rows against T tiles from `tile` on, into p, and their running maxima.
template <int R, int T>
OCTAVO_INLINE void segment_scores(const Attention& a, int first_row, int segment, int tile,
                                  const Span seen[R], float* p, F best[R]) {
  const uint8_t* k[T];
  const uint8_t* v[T];
  const int last = seen[R - 1].hi - 1;
  const PageView next[2] = {page_view(a, imin(tile + T * kTile, last)),
                            page_view(a, imin(tile + (T + 1) * kTile, last))};
  const size_t tile_bytes = size_t(a.head_dim) * 2 * kTile;
  const uint8_t* const ahead[2] = {next[0].k + size_t(next[0].offset / kTile) * tile_bytes,
                                   next[1].k + size_t(next[1].offset / kTile) * tile_bytes};
  for (int t = 0; t < T; ++t) {
    const PageView page = page_view(a, tile + t * kTile);
    k[t] = page.k + size_t(page.offset) * a.head_dim * 2;
    v[t] = page.v + size_t(page.offset) * a.head_dim * 2;
  }
  F score[T][R];
  score_tiles<R, T>(a.q + first_row, a.head_dim, k, ahead, v, score);
  for (int t = 0; t < T; ++t) {
    const int start = tile + t * kTile;
    for (int r = 0; r < R; ++r) {
      const Mask inside = m_range(seen[r].lo - start, seen[r].hi - start);
      const F masked = f_select(inside, score[t][r], f_set1(-__builtin_inff()));
      best[r] = f_max(best[r], masked);
      f_store(p + r * kSegment + start - segment, masked);
    }
  }
}

// Scores and softmax weights of one segment into p [R][256]; per row the maximum and the sum.
template <int R>
OCTAVO_INLINE void segment_weights(const Attention& a, int first_row, int segment, Span span,
                                   float* p, float peak[R], float total[R]) {
  const int first_tile = span.lo & ~(kTile - 1);
  Span seen[R];
  F best[R];
  for (int r = 0; r < R; ++r) {
    seen[r] = visible(a, first_row + r);
    best[r] = f_set1(-__builtin_inff());
  }
  int tile = first_tile;
  for (; tile + kTile < span.hi; tile += 2 * kTile) {
    segment_scores<R, 2>(a, first_row, segment, tile, seen, p, best);
  }
  if (tile < span.hi) segment_scores<R, 1>(a, first_row, segment, tile, seen, p, best);
  for (int r = 0; r < R; ++r) {
    peak[r] = f_maximum(best[r]);
    const bool blind = peak[r] == -__builtin_inff();
    const F offset = f_set1(blind ? 0.0f : peak[r]);
    F sum = f_zero();
    for (tile = first_tile; tile < span.hi; tile += kTile) {
      float* at = p + r * kSegment + tile - segment;
      const F weight = f_exp(f_sub(f_load(at), offset));
      sum = f_add(sum, weight);
      f_store(at, weight);
    }
    total[r] = blind ? 0.0f : f_sum(sum);
  }
}

OCTAVO_INLINE float exp_scalar(float x) {
  float lanes[16];
  f_store(lanes, f_exp(f_set1(x)));
  return lanes[0];
}

struct RowState {
  float peak, total;
  bool empty;
};

OCTAVO_INLINE void merge(RowState& state, float peak, float total, const float* sums, float* out,
                         int head_dim) {
  if (total == 0.0f) return;  // nothing visible in this segment
  if (state.empty) {
    state = {peak, total, false};
    for (int d = 0; d < head_dim; d += 16) f_store(out + d, f_load(sums + d));
    return;
  }
  const float top = peak > state.peak ? peak : state.peak;
  const float keep = exp_scalar(state.peak - top);
  const float add = exp_scalar(peak - top);
  state.total = __builtin_fmaf(state.total, keep, total * add);
  state.peak = top;
  for (int d = 0; d < head_dim; d += 16) {
    const F fresh = f_mul(f_load(sums + d), f_set1(add));
    f_store(out + d, f_fma(f_load(out + d), f_set1(keep), fresh));
  }
}

// Weighted sums of one segment's visible positions, their peaks and totals, of R rows.
template <int R>
OCTAVO_INLINE void segment_sums(const Attention& a, int first_row, int segment, Span whole,
                                float peak[R], float total[R], float* sums) {
  float* p = a.scratch;
  const Span span = {imax(whole.lo, segment), imin(whole.hi, segment + kSegment)};
  segment_weights<R>(a, first_row, segment, span, p, peak, total);
  int d = 0;
  for (; d + 64 <= a.head_dim; d += 64) weigh_values<R, 4>(a, p, segment, span, d, sums);
  for (; d < a.head_dim; d += 16) weigh_values<R, 1>(a, p, segment, span, d, sums);
}

template <int R>
static void attend_rows(const Attention& a, int first_row) {
  float* sums = a.scratch + 4 * kSegment;
  RowState state[R];
  Span whole = visible(a, first_row);
  for (int r = 0; r < R; ++r) {
    state[r] = {0.0f, 0.0f, true};
    const Span seen = visible(a, first_row + r);
    whole = {imin(whole.lo, seen.lo), imax(whole.hi, seen.hi)};
  }
  for (int done = 0; done < a.segment; ++done) {
    for (int r = 0; r < R; ++r) {
      const float* part = a.partial + size_t(done) * a.segment_stride +
                          size_t(first_row + r) * partial_stride(a.head_dim);
      merge(state[r], part[a.head_dim], part[a.head_dim + 1], part,
            a.out + size_t(first_row + r) * a.head_dim, a.head_dim);
    }
  }
  whole.lo = imax(whole.lo, a.segment * kSegment);
  for (int segment = whole.lo & ~(kSegment - 1); segment < whole.hi; segment += kSegment) {
    float peak[R], total[R];
    segment_sums<R>(a, first_row, segment, whole, peak, total, sums);
    for (int r = 0; r < R; ++r) {
      float* out = a.out + size_t(first_row + r) * a.head_dim;
      merge(state[r], peak[r], total[r], sums + size_t(r) * a.head_dim, out, a.head_dim);
    }
  }
  for (int r = 0; r < R; ++r) {
    float* out = a.out + size_t(first_row + r) * a.head_dim;
    const F inverse = f_set1(1.0f / state[r].total);
    for (int d = 0; d < a.head_dim; d += 16) f_store(out + d, f_mul(f_load(out + d), inverse));
  }
}

// One whole segment, visible to every row.
template <int R>
static void part_rows(const Attention& a, int first_row) {
  const float* sums = a.scratch + 4 * kSegment;
  const int segment = a.segment * kSegment;
  float peak[R], total[R];
  segment_sums<R>(a, first_row, segment, {segment, segment + kSegment}, peak, total,
                  a.scratch + 4 * kSegment);
  for (int r = 0; r < R; ++r) {
    float* part = a.partial + size_t(first_row + r) * partial_stride(a.head_dim);
    for (int d = 0; d < a.head_dim; d += 16) f_store(part + d, f_load(sums + r * a.head_dim + d));
    part[a.head_dim] = peak[r];
    part[a.head_dim + 1] = total[r];
  }
}

static void attention(const Attention& a) {
  int row = 0;
  for (; row + 4 <= a.num_rows; row += 4) attend_rows<4>(a, row);
  switch (a.num_rows - row) {
    case 3: attend_rows<3>(a, row); break;
    case 2: attend_rows<2>(a, row); break;
    case 1: attend_rows<1>(a, row); break;
    default: break;
  }
}

static void attention_segment(const Attention& a) {
  int row = 0;
  for (; row + 4 <= a.num_rows; row += 4) part_rows<4>(a, row);
  switch (a.num_rows - row) {
    case 3: part_rows<3>(a, row); break;
    case 2: part_rows<2>(a, row); break;
    case 1: part_rows<1>(a, row); break;
    default: break;
  }
}
