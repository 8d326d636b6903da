// Attention of one KV head from the paged cache.
//
// Per row, positions are taken in segments of 256 aligned to 0: scores of the whole segment, one
// softmax, one weighted sum; segments merge in ascending order. A row's bits depend only on its own
// visible positions: a masked position adds exactly 0, a segment without visible ones is skipped.
//
// From an int8 cache, both products are of whole numbers. A row of q, and a row's softmax weights of
// one segment times the scales of V, are rounded to 15 bits and a sign in units of their own largest
// value; integer sums have no order, and the scales come behind them.
#pragma once

// Inner loops are functions of their own: GCC would hold the constants of the exponential in
// registers around them, and the sums in memory.
#define OCTAVO_OUTLINE static __attribute__((noinline))

constexpr int kFewRows = 8;  // of a token's query heads behind one KV head

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

// The head's K and V of 16 positions, and for int8 their scales.
struct Tile {
  const uint8_t* k;
  const uint8_t* v;
  const float* k_scale;
  const float* v_scale;
};

// The tile of `position`. `Bytes` per element.
template <int Bytes>
OCTAVO_INLINE Tile tile_view(const Attention& a, int position) {
  const int relative = position - a.first_position;
  const int entry = relative / a.block_size;
  const int offset = (relative - entry * a.block_size) & ~(kTile - 1);
  const uint8_t* page = a.layer + size_t(a.table[entry]) * a.page_bytes + a.head_offset;
  const size_t half = size_t(a.block_size) * a.head_dim * Bytes;
  const uint8_t* k = page + size_t(offset) * a.head_dim * Bytes;
  const float* k_scale = reinterpret_cast<const float*>(page + 2 * half) + offset;
  return {k, k + half, k_scale, k_scale + a.block_size};
}

// The tiles of K that are read behind a segment, from `begin` on: fetched while its V is weighed,
// so that memory has work in both halves.
struct Following {
  const Attention* a;
  int begin, end;

  // K of the tile `behind` positions further, or `otherwise` behind the last.
  template <int Bytes>
  const uint8_t* k(int behind, const uint8_t* otherwise) const {
    const int position = begin + behind;
    return position < end ? tile_view<Bytes>(*a, position).k : otherwise;
  }
};

// Those of the item's own next segment, else those of the item that its thread takes next.
OCTAVO_INLINE Following following(const Attention& a, int done, int end) {
  if (done < end) return {&a, done, end};
  if (a.next == nullptr) return {&a, 0, 0};
  const Span span = visible(*a.next, 0);
  return {a.next, imax(span.lo, a.next->segment * kSegment) & ~(kTile - 1), span.hi};
}

// Whole numbers of at most 32767 in magnitude that times the result are x [n]; the result is NaN
// if x holds NaN or an infinity.
OCTAVO_INLINE float round_to_s16(const float* x, int n, int16_t* to) {
  F most = f_zero(), spoiled = f_zero();
  for (int i = 0; i < n; i += 16) {
    most = f_max(f_abs(f_load(x + i)), most);
    spoiled = f_fma(f_load(x + i), f_zero(), spoiled);
  }
  const float peak = f_maximum(most);
  const F inverse = f_set1(peak < 0x1p-100f ? 0.0f : 32767.0f / peak);
  for (int i = 0; i < n; i += 16) i_store_s16(to + i, i_round(f_mul(f_load(x + i), inverse)));
  return peak / 32767.0f + f_sum(spoiled);
}

OCTAVO_INLINE int32_t two_s16(const int16_t* p) {
  int32_t both;
  __builtin_memcpy(&both, p, 4);
  return both;
}

// What a kernel does differently for each type of the cache: Queries, score_tiles, weigh_segment.
struct Bf16 {
  static constexpr int kBytes = 2;
  template <int R>
  struct Queries {
    const float* const* rows;

    Queries(const Attention& a, int first_row) : rows(a.q + first_row) {}
  };
};
struct Int8 {
  static constexpr int kBytes = 1;
  template <int R>
  struct Queries {
    int16_t rows[R][kMaxInt8HeadDim];
    float scale[R];

    Queries(const Attention& a, int first_row) {
      for (int r = 0; r < R; ++r) scale[r] = round_to_s16(a.q[first_row + r], a.head_dim, rows[r]);
    }
  };
};

// Scores of R rows against the 16 positions of each of T tiles; K pairs are [head_dim / 2][16][2].
// Two tiles at a time share the broadcasts of q. With `Fetch`, lines of the next K and of V are
// fetched meanwhile.
template <bool Fetch, int R, int T>
OCTAVO_INLINE void score_tiles(const Bf16::Queries<R>& queries, int head_dim, const Tile tile[T],
                               const Tile ahead[2], F score[T][R]) {
  const float* const* q = queries.rows;
  F even[T][R], odd[T][R];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) even[t][r] = odd[t][r] = f_zero();
  }
  const I high = i_set1(int32_t(0xffff0000u));
  for (int d = 0; d < head_dim; d += 2) {
    if constexpr (Fetch) {
      prefetch(ahead[0].k + size_t(d) * 32);
      prefetch(ahead[1].k + size_t(d) * 32);
      for (int t = 0; t < T; ++t) prefetch(tile[t].v + size_t(d) * 32);
    }
    F k0[T], k1[T];
    OCTAVO_UNROLL(2)
    for (int t = 0; t < T; ++t) {
      const I pair = i_load(tile[t].k + size_t(d) * 32);
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

template <bool Fetch, int R, int T>
OCTAVO_INLINE void score_tiles(const Int8::Queries<R>& q, int head_dim, const Tile tile[T],
                               const Tile ahead[2], F score[T][R]) {
  // Two chains of sums each, so that none is waited for. All loops over rows and tiles are unrolled:
  // GCC keeps arrays in memory that any loop indexes.
  I even[T][R], odd[T][R];
  OCTAVO_UNROLL(2)
  for (int t = 0; t < T; ++t) {
    OCTAVO_UNROLL(4)
    for (int r = 0; r < R; ++r) even[t][r] = odd[t][r] = i_set1(0);
  }
  if constexpr (Fetch) {
    prefetch(ahead[0].k_scale);
    prefetch(ahead[1].k_scale);
    for (int t = 0; t < T; ++t) prefetch(tile[t].v_scale);
  }
  for (int first = 0; first < head_dim; first += 4) {
    if constexpr (Fetch) {
      prefetch(ahead[0].k + size_t(first) * 16);
      prefetch(ahead[1].k + size_t(first) * 16);
      for (int t = 0; t < T; ++t) prefetch(tile[t].v + size_t(first) * 16);
    }
    I k0[T], k1[T];
    OCTAVO_UNROLL(2)
    for (int t = 0; t < T; ++t) {
      k0[t] = i_load_s8_pairs(tile[t].k + size_t(first) * 16);
      k1[t] = i_load_s8_pairs(tile[t].k + size_t(first) * 16 + 32);
    }
    OCTAVO_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      const int32_t q0 = two_s16(q.rows[r] + first), q1 = two_s16(q.rows[r] + first + 2);
      OCTAVO_UNROLL(2)
      for (int t = 0; t < T; ++t) {
        even[t][r] = i_dot2(even[t][r], k0[t], q0);
        odd[t][r] = i_dot2(odd[t][r], k1[t], q1);
      }
    }
  }
  OCTAVO_UNROLL(2)
  for (int t = 0; t < T; ++t) {
    const F scale = f_load(tile[t].k_scale);
    OCTAVO_UNROLL(4)
    for (int r = 0; r < R; ++r) {
      const F sum = f_from_i(i_add(even[t][r], odd[t][r]));
      score[t][r] = f_mul(sum, f_mul(scale, f_set1(q.scale[r])));
    }
  }
}

// sums[r][0 .. 16·Vectors) += Σ p · V over positions [lo, hi), from dimension d on.
template <bool Fetch, int R, int Vectors>
OCTAVO_INLINE void weigh_values(const Attention& a, const float* p, int segment, Span span, int d,
                                const Following& following, float* sums) {
  F acc[R][Vectors];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < Vectors; ++i) acc[r][i] = f_zero();
  }
  const I high = i_set1(int32_t(0xffff0000u));
  const size_t pair_bytes = size_t(a.head_dim) * 4;
  // Pairs outside [lo, hi) are never read, half pairs only on their own side: an unwritten slot
  // may hold NaN.
  const int first_tile = span.lo & ~(kTile - 1);
  for (int tile = first_tile; tile < span.hi; tile += kTile) {
    const uint8_t* v = tile_view<Bf16::kBytes>(a, tile).v + size_t(d) * 4;
    const uint8_t* later = following.k<Bf16::kBytes>(tile - first_tile, v) + size_t(d) * 32;
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
        if constexpr (Fetch) prefetch(later + size_t(t - tile) * 32 * Vectors + 64 * i);
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

template <bool Fetch, int R>
OCTAVO_INLINE void weigh_segment(Bf16, const Attention& a, float* p, int segment, Span span,
                                 const Following& following, float* sums) {
  int d = 0;
  for (; d + 64 <= a.head_dim; d += 64) {
    weigh_values<Fetch, R, 4>(a, p, segment, span, d, following, sums);
  }
  for (; d < a.head_dim; d += 16) {
    weigh_values<Fetch, R, 1>(a, p, segment, span, d, following, sums);
  }
}

// The same from whole numbers: `weights` are 0 where a row sees nothing, so tiles are taken whole.
template <bool Fetch, int R, int Vectors>
OCTAVO_OUTLINE void weigh_values(const Attention& a, const int16_t (*weights)[kSegment],
                                const float* scale, int segment, Span span, int d,
                                const Following& following, float* sums) {
  I acc[R][Vectors];
  OCTAVO_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    OCTAVO_UNROLL(4)
    for (int i = 0; i < Vectors; ++i) acc[r][i] = i_set1(0);
  }
  const size_t pair_bytes = size_t(a.head_dim) * 2;
  const int first_tile = span.lo & ~(kTile - 1);
  for (int tile = first_tile; tile < span.hi; tile += kTile) {
    const uint8_t* v = tile_view<Int8::kBytes>(a, tile).v + size_t(d) * 2;
    const uint8_t* later = following.k<Int8::kBytes>(tile - first_tile, v) + size_t(d) * 16;
    for (int t = 0; t < kTile; t += 2) {
      int32_t two[R];
      OCTAVO_UNROLL(4)
      for (int r = 0; r < R; ++r) two[r] = two_s16(weights[r] + tile - segment + t);
      OCTAVO_UNROLL(4)
      for (int i = 0; i < Vectors; ++i) {
        if constexpr (Fetch) prefetch(later + t * 16 * Vectors + 32 * i);
        const I pair = i_load_s8_pairs(v + t / 2 * pair_bytes + 32 * i);
        OCTAVO_UNROLL(4)
        for (int r = 0; r < R; ++r) acc[r][i] = i_dot2(acc[r][i], pair, two[r]);
      }
    }
  }
  OCTAVO_UNROLL(4)
  for (int r = 0; r < R; ++r) {
    float* out = sums + size_t(r) * a.head_dim + d;
    OCTAVO_UNROLL(4)
    for (int i = 0; i < Vectors; ++i) {
      f_store(out + 16 * i, f_mul(f_from_i(acc[r][i]), f_set1(scale[r])));
    }
  }
}

template <bool Fetch, int R>
OCTAVO_INLINE void weigh_segment(Int8, const Attention& a, float* p, int segment, Span span,
                                 const Following& following, float* sums) {
  const int first_tile = span.lo & ~(kTile - 1);
  // A weight of 0 stays 0, whatever an unwritten slot's scale is.
  for (int tile = first_tile; tile < span.hi; tile += kTile) {
    const F v_scale = f_load(tile_view<Int8::kBytes>(a, tile).v_scale);
    for (int r = 0; r < R; ++r) {
      float* at = p + r * kSegment + tile - segment;
      const F weight = f_load(at);
      f_store(at, f_select(f_less(f_zero(), weight), f_mul(weight, v_scale), f_zero()));
    }
  }
  int16_t weights[R][kSegment];
  float scale[R];
  const int begin = first_tile - segment;
  const int count = ((span.hi + kTile - 1) & ~(kTile - 1)) - first_tile;
  for (int r = 0; r < R; ++r) {
    scale[r] = round_to_s16(p + r * kSegment + begin, count, weights[r] + begin);
  }
  int d = 0;
  for (; d + 64 <= a.head_dim; d += 64) {
    weigh_values<Fetch, R, 4>(a, weights, scale, segment, span, d, following, sums);
  }
  for (; d < a.head_dim; d += 16) {
    weigh_values<Fetch, R, 1>(a, weights, scale, segment, span, d, following, sums);
  }
}

// Masked scores of R rows against T tiles from position `start` on, into p, and their running
// maxima.
template <class Cache, bool Fetch, int R, int T>
OCTAVO_INLINE void segment_scores(const Attention& a,
                                  const typename Cache::template Queries<R>& queries, int segment,
                                  int start, const Span seen[R], float* p, F best[R]) {
  const int last = seen[R - 1].hi - 1;
  const Tile ahead[2] = {tile_view<Cache::kBytes>(a, imin(start + T * kTile, last)),
                         tile_view<Cache::kBytes>(a, imin(start + (T + 1) * kTile, last))};
  Tile tile[T];
  for (int t = 0; t < T; ++t) tile[t] = tile_view<Cache::kBytes>(a, start + t * kTile);
  F score[T][R];
  score_tiles<Fetch, R, T>(queries, a.head_dim, tile, ahead, score);
  for (int t = 0; t < T; ++t) {
    const int first = start + t * kTile;
    for (int r = 0; r < R; ++r) {
      const Mask inside = m_range(seen[r].lo - first, seen[r].hi - first);
      const F masked = f_select(inside, score[t][r], f_set1(-__builtin_inff()));
      best[r] = f_max(best[r], masked);
      f_store(p + r * kSegment + first - segment, masked);
    }
  }
}

// The same for all tiles of a span.
template <class Cache, bool Fetch, int R>
OCTAVO_OUTLINE void span_scores(const Attention& a,
                                const typename Cache::template Queries<R>& queries, int segment,
                                Span span, const Span seen[R], float* p, F best[R]) {
  int tile = span.lo & ~(kTile - 1);
  for (; tile + kTile < span.hi; tile += 2 * kTile) {
    segment_scores<Cache, Fetch, R, 2>(a, queries, segment, tile, seen, p, best);
  }
  if (tile < span.hi) segment_scores<Cache, Fetch, R, 1>(a, queries, segment, tile, seen, p, best);
}

// Scores and softmax weights of one segment into p [R][256]; per row the maximum and the sum.
template <class Cache, bool Fetch, int R>
OCTAVO_INLINE void segment_weights(const Attention& a, int first_row,
                                   const typename Cache::template Queries<R>& queries, int segment,
                                   Span span, float* p, float peak[R], float total[R]) {
  const int first_tile = span.lo & ~(kTile - 1);
  Span seen[R];
  F best[R];
  for (int r = 0; r < R; ++r) {
    seen[r] = visible(a, first_row + r);
    best[r] = f_set1(-__builtin_inff());
  }
  span_scores<Cache, Fetch, R>(a, queries, segment, span, seen, p, best);
  for (int r = 0; r < R; ++r) {
    peak[r] = f_maximum(best[r]);
    const bool blind = peak[r] == -__builtin_inff();
    const F offset = f_set1(blind ? 0.0f : peak[r]);
    F sum = f_zero();
    for (int tile = first_tile; tile < span.hi; tile += kTile) {
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
template <class Cache, bool Fetch, int R>
OCTAVO_INLINE void segment_sums(const Attention& a, int first_row,
                                const typename Cache::template Queries<R>& queries, int segment,
                                Span whole, float peak[R], float total[R], float* sums) {
  float* p = a.scratch;
  const Span span = {imax(whole.lo, segment), imin(whole.hi, segment + kSegment)};
  segment_weights<Cache, Fetch, R>(a, first_row, queries, segment, span, p, peak, total);
  const Following later = following(a, segment + kSegment, whole.hi);
  weigh_segment<Fetch, R>(Cache{}, a, p, segment, span, later, sums);
}

template <class Cache, bool Fetch, int R>
static void attend_rows(const Attention& a, int first_row) {
  const typename Cache::template Queries<R> queries(a, first_row);
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
    segment_sums<Cache, Fetch, R>(a, first_row, queries, segment, whole, peak, total, sums);
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
template <class Cache, bool Fetch, int R>
static void part_rows(const Attention& a, int first_row) {
  const typename Cache::template Queries<R> queries(a, first_row);
  const float* sums = a.scratch + 4 * kSegment;
  const int segment = a.segment * kSegment;
  float peak[R], total[R];
  segment_sums<Cache, Fetch, R>(a, first_row, queries, segment, {segment, segment + kSegment},
                                peak, total, a.scratch + 4 * kSegment);
  for (int r = 0; r < R; ++r) {
    float* part = a.partial + size_t(first_row + r) * partial_stride(a.head_dim);
    for (int d = 0; d < a.head_dim; d += 16) f_store(part + d, f_load(sums + r * a.head_dim + d));
    part[a.head_dim] = peak[r];
    part[a.head_dim + 1] = total[r];
  }
}

template <class Cache, bool Fetch>
struct Attend {
  template <int R>
  static void rows(const Attention& a, int first_row) {
    attend_rows<Cache, Fetch, R>(a, first_row);
  }
};
template <class Cache, bool Fetch>
struct Part {
  template <int R>
  static void rows(const Attention& a, int first_row) {
    part_rows<Cache, Fetch, R>(a, first_row);
  }
};

template <class Work>
static void four_at_a_time(const Attention& a) {
  int row = 0;
  for (; row + 4 <= a.num_rows; row += 4) Work::template rows<4>(a, row);
  switch (a.num_rows - row) {
    case 3: Work::template rows<3>(a, row); break;
    case 2: Work::template rows<2>(a, row); break;
    case 1: Work::template rows<1>(a, row); break;
    default: break;
  }
}

// Few rows mean decoding: pages come from memory and are used once.
template <template <class, bool> class Work, class Cache>
static void attention(const Attention& a) {
  if (a.num_rows <= kFewRows) {
    four_at_a_time<Work<Cache, true>>(a);
  } else {
    four_at_a_time<Work<Cache, false>>(a);
  }
}
