// Matrix kernels over one panel, written once; the including unit has defined the vectors.
//
// One float order for every width, row count and instruction set: a lane is an output; within a
// K-slice groups ascend with one FMA per scale; slices are summed in ascending order.
#pragma once

// Loaders. `load` gives the unsigned weights of input quad j for columns 0..15 and 16..31;
// quads of one `half` share a scale; `zero_shift` says that weight 2^zero_shift means 0.
template <int SuperBytes, int GroupBytes>
struct GroupStream {
  OCTAVO_INLINE const uint8_t* group(const uint8_t* panel, int g) {
    if constexpr (SuperBytes == 0) {
      return panel + size_t(g) * GroupBytes;
    } else {
      return header(panel, g) + SuperBytes + size_t(g % 8) * GroupBytes;
    }
  }
  OCTAVO_INLINE const uint8_t* header(const uint8_t* panel, int g) {
    return panel + size_t(g / 8) * (SuperBytes + 8 * GroupBytes);
  }
  // Where the share of group g begins in the stream, a header with the group behind it.
  OCTAVO_INLINE size_t offset(int g) {
    return size_t(g) * GroupBytes + size_t(g / 8) * SuperBytes;
  }
  static constexpr bool has_header = SuperBytes > 0;
  static constexpr int halves = 1;
  static constexpr bool has_min = false;
  static constexpr bool subtract_min = false;
  static constexpr int zero_shift = -1;
  static constexpr int bits = 4;
  static constexpr int group_bytes = GroupBytes;
};

OCTAVO_INLINE void load_nibbles(const uint8_t* g, int j, I w[2]) {
  const I packed = i_load(g + 64 * j);
  const I low = i_set1(0x0f0f0f0f);
  w[0] = i_and(packed, low);
  w[1] = i_and(i_shr<4>(packed), low);
}

struct WeightsQ4 : GroupStream<0, 576> {
  static constexpr int zero_shift = 3;
  OCTAVO_INLINE void load(const uint8_t* g, int j, I w[2]) { load_nibbles(g, j, w); }
  OCTAVO_INLINE F scale(const uint8_t*, const uint8_t* g, int, int c) {
    return f_load_f16(g + 512 + 32 * c);
  }
};

struct WeightsQ41 : GroupStream<0, 640> {
  static constexpr bool has_min = true;
  OCTAVO_INLINE void load(const uint8_t* g, int j, I w[2]) { load_nibbles(g, j, w); }
  OCTAVO_INLINE F scale(const uint8_t*, const uint8_t* g, int, int c) {
    return f_load_f16(g + 512 + 32 * c);
  }
  OCTAVO_INLINE F minimum(const uint8_t*, const uint8_t* g, int c) {
    return f_load_f16(g + 576 + 32 * c);
  }
};

struct WeightsQ5 : GroupStream<0, 704> {
  static constexpr int zero_shift = 4;
  static constexpr int bits = 5;
  OCTAVO_INLINE void load(const uint8_t* g, int j, I w[2]) {
    load_nibbles(g, j, w);
    w[0] = i_or(w[0], i_expand_bits(g + 512 + 16 * j, 16));
    w[1] = i_or(w[1], i_expand_bits(g + 512 + 16 * j + 8, 16));
  }
  OCTAVO_INLINE F scale(const uint8_t*, const uint8_t* g, int, int c) {
    return f_load_f16(g + 640 + 32 * c);
  }
};

struct WeightsQ8 : GroupStream<0, 1088> {
  static constexpr int zero_shift = 7;
  static constexpr int bits = 8;
  OCTAVO_INLINE void load(const uint8_t* g, int j, I w[2]) {
    w[0] = i_load(g + 128 * j);
    w[1] = i_load(g + 128 * j + 64);
  }
  OCTAVO_INLINE F scale(const uint8_t*, const uint8_t* g, int, int c) {
    return f_load_f16(g + 1024 + 32 * c);
  }
};

struct WeightsQ4K : GroupStream<128, 576> {
  static constexpr bool has_min = true;
  static constexpr bool subtract_min = true;
  OCTAVO_INLINE void load(const uint8_t* g, int j, I w[2]) { load_nibbles(g, j, w); }
  OCTAVO_INLINE F scale(const uint8_t* header, const uint8_t* g, int, int c) {
    return f_mul(f_load_f16(header + 32 * c), f_load_u8(g + 512 + 16 * c));
  }
  OCTAVO_INLINE F minimum(const uint8_t* header, const uint8_t* g, int c) {
    return f_mul(f_load_f16(header + 64 + 32 * c), f_load_u8(g + 544 + 16 * c));
  }
};

struct WeightsQ6K : GroupStream<64, 832> {
  static constexpr int halves = 2;
  static constexpr int zero_shift = 5;
  static constexpr int bits = 6;
  OCTAVO_INLINE void load(const uint8_t* g, int j, I w[2]) {
    load_nibbles(g, j, w);
    const I plane = i_load(g + 512 + 64 * (j / 2));
    const I mask = i_set1(0x30303030);
    if (j % 2 == 0) {
      w[0] = i_or(w[0], i_and(i_shl<4>(plane), mask));
      w[1] = i_or(w[1], i_and(i_shl<2>(plane), mask));
    } else {
      w[0] = i_or(w[0], i_and(plane, mask));
      w[1] = i_or(w[1], i_and(i_shr<2>(plane), mask));
    }
  }
  OCTAVO_INLINE F scale(const uint8_t* header, const uint8_t* g, int half, int c) {
    return f_mul(f_load_f16(header + 32 * c), f_load_s8(g + 768 + 32 * half + 16 * c));
  }
};

OCTAVO_INLINE int32_t load_i32(const void* p) {
  int32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}
OCTAVO_INLINE F broadcast(const uint8_t* p) {
  float x;
  __builtin_memcpy(&x, p, 4);
  return f_set1(x);
}

OCTAVO_INLINE I shift_bytes(I x, int bytes) {
  return bytes == 1 ? i_shr<8>(x) : bytes == 2 ? i_shr<16>(x) : i_shr<24>(x);
}

// Adds the products of one half's quads to the integer sums of R of a block's `Lanes` rows and of
// kTileColumns × 16 columns from 16-lane column `first` on.
template <class W, int R, int Lanes>
OCTAVO_INLINE void add_quads(const uint8_t* group, const uint8_t* quads, int half, int first,
                             I sum[R][kTileColumns]) {
  constexpr int kQuads = 8 / W::halves;
  constexpr int kRun = kRunQuads<W::bits> < kQuads ? kRunQuads<W::bits> : kQuads;
  OCTAVO_UNROLL(8)
  for (int begin = half * kQuads; begin < (half + 1) * kQuads; begin += kRun) {
    I run[R][kTileColumns];
    OCTAVO_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      OCTAVO_UNROLL(8)
      for (int c = 0; c < kTileColumns; ++c) run[r][c] = run_start<W::bits>(sum[r][c]);
    }
    OCTAVO_UNROLL(8)
    for (int j = begin; j < begin + kRun; ++j) {
      I w[2];
      W::load(group, j, w);
      OCTAVO_UNROLL(8)
      for (int r = 0; r < R; ++r) {
        const int32_t quad = load_i32(quads + 4 * (j * Lanes + r));
        OCTAVO_UNROLL(8)
        for (int c = 0; c < kTileColumns; ++c) {
          run[r][c] = run_dot4<W::bits>(run[r][c], w[first + c], quad);
        }
      }
    }
    OCTAVO_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      OCTAVO_UNROLL(8)
      for (int c = 0; c < kTileColumns; ++c) sum[r][c] = run_end<W::bits>(sum[r][c], run[r][c]);
    }
  }
}

// Whether a group is wide for any of R rows.
template <int R>
OCTAVO_INLINE bool any_wide(const uint8_t* quads) {
  uint64_t flags[(R + 1) / 2] = {};
  __builtin_memcpy(flags, quads + (32 + 20) * R, 4 * R);
  return R == 1 ? flags[0] != 0 : (flags[0] | flags[(R + 1) / 2 - 1]) != 0;
}

// The products of the high quads of those rows for which the group is wide, times 128; of the
// others 0. In memory: few rows have them, and a branch for each would want its own registers.
template <class W, int R>
OCTAVO_INLINE void high_sums(const uint8_t* group, const uint8_t* quads, int half, int first,
                             uint8_t* to) {
  for (int r = 0; r < R; ++r, to += 64 * kTileColumns) {
    I sum[1][kTileColumns];
    OCTAVO_UNROLL(8)
    for (int c = 0; c < kTileColumns; ++c) sum[0][c] = i_set1(0);
    if (load_i32(quads + (32 + 20) * R + 4 * r) != 0) {
      add_quads<W, 1, R>(group, quads + 64 * R + 4 * r, half, first, sum);
    }
    OCTAVO_UNROLL(8)
    for (int c = 0; c < kTileColumns; ++c) i_store(to + 64 * c, i_shl<7>(sum[0][c]));
  }
}

// Adds one group of R rows to the kTileColumns of `acc` from column `first` on.
template <class W, int R, bool Wide>
OCTAVO_INLINE void add_columns(const uint8_t* header, const uint8_t* group, const uint8_t* quads,
                               int first, F acc[R][2]) {
  constexpr bool kOffset = W::zero_shift >= 0 && !(kCentredBytes && W::bits == 8);
  const uint8_t* scales = quads + 32 * R;
  OCTAVO_UNROLL(2)
  for (int half = 0; half < W::halves; ++half) {
    alignas(64) uint8_t high[Wide ? R * kTileColumns * 64 : 1];
    if constexpr (Wide) high_sums<W, R>(group, quads, half, first, high);
    I sum[R][kTileColumns];
    OCTAVO_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      I init = i_set1(0);
      if constexpr (kOffset) {
        const int which = W::halves == 1 ? 2 : 3 + half;
        init = i_shl<(W::zero_shift < 0 ? 0 : W::zero_shift)>(
            i_set1(load_i32(scales + 4 * (which * R + r))));
      }
      OCTAVO_UNROLL(8)
      for (int c = 0; c < kTileColumns; ++c) {
        sum[r][c] = init;
        if constexpr (Wide) {
          sum[r][c] = i_add(init, i_load(high + 64 * (r * kTileColumns + c)));
        }
      }
    }
    add_quads<W, R, R>(group, quads, half, first, sum);
    F scale[kTileColumns];
    OCTAVO_UNROLL(8)
    for (int c = 0; c < kTileColumns; ++c) scale[c] = W::scale(header, group, half, first + c);
    OCTAVO_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      const F act = broadcast(scales + 4 * r);
      OCTAVO_UNROLL(8)
      for (int c = 0; c < kTileColumns; ++c) {
        F& to = acc[r][first + c];
        to = f_fma(scale[c], f_mul(f_from_i(sum[r][c]), act), to);
      }
    }
  }
  if constexpr (W::has_min) {
    F low[kTileColumns];
    OCTAVO_UNROLL(8)
    for (int c = 0; c < kTileColumns; ++c) low[c] = W::minimum(header, group, first + c);
    OCTAVO_UNROLL(8)
    for (int r = 0; r < R; ++r) {
      const F act = broadcast(scales + 4 * (R + r));
      OCTAVO_UNROLL(8)
      for (int c = 0; c < kTileColumns; ++c) {
        F& to = acc[r][first + c];
        to = W::subtract_min ? f_fnma(low[c], act, to) : f_fma(low[c], act, to);
      }
    }
  }
}

template <class W, int R, bool Wide>
OCTAVO_INLINE void add_tiles(const uint8_t* header, const uint8_t* group, const uint8_t* quads,
                             F acc[R][2]) {
  OCTAVO_UNROLL(2)
  for (int first = 0; first < 2; first += kTileColumns) {
    // Else the compiler shares the loads of both tiles and runs out of registers.
    if (first > 0) asm volatile("" ::: "memory");
    add_columns<W, R, Wide>(header, group, quads, first, acc);
  }
}

// Adds one group of R rows × 32 columns to `acc`.
template <class W, int R>
OCTAVO_INLINE void add_group(const uint8_t* header, const uint8_t* group, const uint8_t* quads,
                             F acc[R][2]) {
  if (any_wide<R>(quads)) {
    add_tiles<W, R, true>(header, group, quads, acc);
  } else {
    add_tiles<W, R, false>(header, group, quads, acc);
  }
}

// Adds group g of R rows × 32 columns to `acc`.
template <class W, int R>
OCTAVO_INLINE void int_group(const uint8_t* panel, const uint8_t* acts, int g, F acc[R][2]) {
  const uint8_t* quads = acts + size_t(g) * 96 * R;
  add_group<W, R>(W::header(panel, g), W::group(panel, g), quads, acc);
}

// Writes R rows × 32 columns: bias, residual, and narrower last panels.
template <int R>
OCTAVO_INLINE void store_tile(const PanelGemm& p, int block, F total[R][2]) {
  for (int r = 0; r < R; ++r) {
    float* out = p.out + size_t(block * R + r) * p.out_stride;
    float edge[kPanel];
    for (int c = 0; c < 2; ++c) {
      if (p.bias) total[r][c] = f_add(total[r][c], f_load(p.bias + 16 * c));
      if (p.columns == kPanel) {
        if (p.residual) total[r][c] = f_add(f_load(out + 16 * c), total[r][c]);
        f_store(out + 16 * c, total[r][c]);
      } else {
        f_store(edge + 16 * c, total[r][c]);
      }
    }
    if (p.columns == kPanel) continue;
    for (int n = 0; n < p.columns; ++n) out[n] = p.residual ? out[n] + edge[n] : edge[n];
  }
}

// How far ahead of itself a single row asks for its panel's stream: hardware prefetchers stop at
// every 4 KiB page and leave half of the memory's rate unused.
constexpr size_t kStreamAhead = 8192;

// Every block but the first meets the panel in cache; Lines > 0 uses the time to prefetch the next
// panel, each block its own lines of every group.
template <class W, int R, int Lines>
static void int_blocks(const PanelGemm& p) {
  for (int block = p.first_block; block < p.last_block; ++block) {
    const uint8_t* acts = p.acts.ints + size_t(block) * p.acts.int_block_bytes();
    const uint8_t* ahead = p.next + 64 * Lines * (block - p.first_block);
    F total[R][2];
    int g = 0;
    for (int slice = 0; slice < p.num_slices; ++slice) {
      F acc[R][2];
      for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = f_zero();
      for (; g < p.slice_ends[slice]; ++g) {
        OCTAVO_UNROLL(20)
        for (int i = 0; i < Lines; ++i) prefetch(ahead + W::offset(g) + 64 * i);
        if constexpr (R == 1) {
          const uint8_t* stream = W::group(p.weights, g) + kStreamAhead;
          OCTAVO_UNROLL(20)
          for (int i = 0; i < W::group_bytes / 64; ++i) prefetch(stream + 64 * i);
        }
        int_group<W, R>(p.weights, acts, g, acc);
      }
      for (int r = 0; r < R; ++r) {
        for (int c = 0; c < 2; ++c) {
          total[r][c] = slice == 0 ? acc[r][c] : f_add(total[r][c], acc[r][c]);
        }
      }
    }
    store_tile<R>(p, block, total);
  }
}

// A group of any format, unpacked for several blocks: [8][2][64] bytes, then per half the scales
// and then the minima as float [32].
template <class W>
struct Unpacked {
  static constexpr int halves = W::halves;
  static constexpr bool has_min = W::has_min;
  static constexpr bool subtract_min = W::subtract_min;
  static constexpr int zero_shift = W::zero_shift;
  static constexpr int bits = W::bits;
  static constexpr int group_bytes = 1024 + 128 * (W::halves + (W::has_min ? 1 : 0));
  OCTAVO_INLINE void load(const uint8_t* g, int j, I w[2]) {
    w[0] = i_load(g + 128 * j);
    w[1] = i_load(g + 128 * j + 64);
  }
  OCTAVO_INLINE F scale(const uint8_t*, const uint8_t* g, int half, int c) {
    return f_load(reinterpret_cast<const float*>(g + 1024 + 128 * half + 64 * c));
  }
  OCTAVO_INLINE F minimum(const uint8_t*, const uint8_t* g, int c) {
    return f_load(reinterpret_cast<const float*>(g + 1024 + 128 * W::halves + 64 * c));
  }
  OCTAVO_INLINE void unpack(const uint8_t* panel, int g, uint8_t* to) {
    const uint8_t* header = W::header(panel, g);
    const uint8_t* group = W::group(panel, g);
    OCTAVO_UNROLL(8)
    for (int j = 0; j < 8; ++j) {
      I w[2];
      W::load(group, j, w);
      i_store(to + 128 * j, w[0]);
      i_store(to + 128 * j + 64, w[1]);
    }
    float* scales = reinterpret_cast<float*>(to + 1024);
    for (int c = 0; c < 2; ++c) {
      for (int half = 0; half < W::halves; ++half) {
        f_store(scales + 32 * half + 16 * c, W::scale(header, group, half, c));
      }
      if constexpr (W::has_min) {
        f_store(scales + 32 * W::halves + 16 * c, W::minimum(header, group, c));
      }
    }
  }
};

// Groups [begin, end) of a panel; meanwhile those of the next panel are prefetched.
template <class W>
OCTAVO_INLINE void unpack_groups(const PanelGemm& p, int begin, int end, uint8_t* to) {
  for (int g = begin; g < end; ++g, to += Unpacked<W>::group_bytes) {
    Unpacked<W>::unpack(p.weights, g, to);
    OCTAVO_UNROLL(20)
    for (int i = 0; i < W::group_bytes / 64; ++i) {
      if (p.next) prefetch(p.next + W::offset(g) + 64 * i);
    }
  }
}

template <class W>
OCTAVO_INLINE void add_unpacked(const PanelGemm& p, int block, int begin, int end,
                                const uint8_t* group, F acc[4][2]) {
  using U = Unpacked<W>;
  const uint8_t* quads = p.acts.ints + size_t(block) * p.acts.int_block_bytes();
  quads += size_t(begin) * 96 * 4;
  for (int g = begin; g < end; ++g, quads += 96 * 4, group += U::group_bytes) {
    add_group<U, 4>(nullptr, group, quads, acc);
  }
}

constexpr int kChunkGroups = 16;  // unpacked they stay in the first-level cache

// kUnpackBlocks and more blocks of four rows: a few groups at a time are unpacked once for all of
// them. Worth it where scales and planes take many steps; plain nibbles are as quick to unpack as to
// read back.
template <class W>
static void int_chunks(const PanelGemm& p) {
  using U = Unpacked<W>;
  alignas(64) uint8_t unpacked[kChunkGroups * U::group_bytes];
  int begin = 0;
  for (int slice = 0; slice < p.num_slices; ++slice) {
    const int first = begin, end = p.slice_ends[slice];
    while (begin < end) {
      const int next = begin + kChunkGroups < end ? begin + kChunkGroups : end;
      unpack_groups<W>(p, begin, next, unpacked);
      for (int block = p.first_block; block < p.last_block; ++block) {
        // Per block the sums of the slice, and behind those of all blocks the sums of the slices.
        float* sums = p.scratch + (block - p.first_block) * 4 * kPanel;
        float* totals = sums + (p.last_block - p.first_block) * 4 * kPanel;
        F acc[4][2];
        for (int i = 0; i < 8; ++i) {
          acc[i / 2][i % 2] = begin == first ? f_zero() : f_load(sums + 16 * i);
        }
        add_unpacked<W>(p, block, begin, next, unpacked, acc);
        if (next < end) {
          for (int i = 0; i < 8; ++i) f_store(sums + 16 * i, acc[i / 2][i % 2]);
          continue;
        }
        for (int i = 0; i < 8 && slice > 0; ++i) {
          acc[i / 2][i % 2] = f_add(f_load(totals + 16 * i), acc[i / 2][i % 2]);
        }
        if (slice + 1 == p.num_slices) {
          store_tile<4>(p, block, acc);
          continue;
        }
        for (int i = 0; i < 8; ++i) f_store(totals + 16 * i, acc[i / 2][i % 2]);
      }
      begin = next;
    }
  }
}

template <class W, int R>
static void gemm_int(const PanelGemm& p) {
  if constexpr (R == 4 && W::has_header) {
    if (p.last_block - p.first_block >= kUnpackBlocks) return int_chunks<W>(p);
  }
  const int blocks = p.last_block - p.first_block;
  constexpr int kLines = W::group_bytes / 64;
  if (R == 1 || !p.next || blocks > kLines) {
    int_blocks<W, R, 0>(p);  // one row asks for its own, or the next panel is a long way off
  } else if (blocks == 1) {
    int_blocks<W, R, R == 1 ? 0 : kLines>(p);
  } else if (blocks * 4 < kLines) {
    int_blocks<W, R, R == 1 ? 0 : kLines / 2>(p);
  } else if (blocks * 2 < kLines) {
    int_blocks<W, R, R == 1 ? 0 : 4>(p);
  } else {
    int_blocks<W, R, R == 1 ? 0 : 2>(p);
  }
}

// The exact float value of one group, [32][32].
template <class W>
OCTAVO_INLINE void unpack_group(const uint8_t* panel, int g, float* out) {
  const uint8_t* header = W::header(panel, g);
  const uint8_t* group = W::group(panel, g);
  const float zero = W::zero_shift < 0 ? 0.0f : float(1 << (W::zero_shift < 0 ? 0 : W::zero_shift));
  for (int j = 0; j < 8; ++j) {
    I w[2];
    W::load(group, j, w);
    for (int c = 0; c < 2; ++c) {
      const F scale = W::scale(header, group, j * W::halves / 8, c);
      for (int k = 0; k < 4; ++k) {
        const I quant = i_and(k == 0 ? w[c] : shift_bytes(w[c], k), i_set1(0xff));
        F value = f_mul(scale, f_sub(f_from_i(quant), f_set1(zero)));
        if constexpr (W::has_min) {
          const F low = W::minimum(header, group, c);
          value = W::subtract_min ? f_sub(value, low) : f_add(value, low);
        }
        f_store(out + (4 * j + k) * kPanel + 16 * c, value);
      }
    }
  }
}

struct WeightsF32 : GroupStream<0, 4096> {
  OCTAVO_INLINE F load(const uint8_t* p) { return f_load(reinterpret_cast<const float*>(p)); }
  static constexpr int bytes = 4;
};
struct WeightsF16 : GroupStream<0, 2048> {
  OCTAVO_INLINE F load(const uint8_t* p) { return f_load_f16(p); }
  static constexpr int bytes = 2;
};
struct WeightsBF16 : GroupStream<0, 2048> {
  OCTAVO_INLINE F load(const uint8_t* p) { return f_load_bf16(p); }
  static constexpr int bytes = 2;
};

// Float weights [groups · 32][32] times float activations, one FMA per input, ascending.
template <class W, int R>
OCTAVO_INLINE void float_blocks(const PanelGemm& p, const uint8_t* weights) {
  for (int block = p.first_block; block < p.last_block; ++block) {
    const float* acts = p.acts.floats + size_t(block) * p.acts.float_block_size();
    F total[R][2];
    int k = 0;
    for (int slice = 0; slice < p.num_slices; ++slice) {
      F acc[R][2];
      for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = f_zero();
      for (; k < p.slice_ends[slice] * kGroup; ++k) {
        const uint8_t* row = weights + size_t(k) * kPanel * W::bytes;
        const F w[2] = {W::load(row), W::load(row + 16 * W::bytes)};
  OCTAVO_UNROLL(8)
        for (int r = 0; r < R; ++r) {
          const F act = f_set1(acts[size_t(k) * R + r]);
          acc[r][0] = f_fma(w[0], act, acc[r][0]);
          acc[r][1] = f_fma(w[1], act, acc[r][1]);
        }
      }
      for (int r = 0; r < R; ++r) {
        for (int c = 0; c < 2; ++c) {
          total[r][c] = slice == 0 ? acc[r][c] : f_add(total[r][c], acc[r][c]);
        }
      }
    }
    store_tile<R>(p, block, total);
  }
}

template <class W, int R>
static void gemm_float(const PanelGemm& p) {
  float_blocks<W, R>(p, p.weights);
}

template <class W, int R>
static void gemm_unpacked(const PanelGemm& p) {
  for (int g = 0; g < p.acts.groups; ++g) {
    unpack_group<W>(p.weights, g, p.scratch + size_t(g) * kGroup * kPanel);
  }
  float_blocks<WeightsF32, R>(p, reinterpret_cast<const uint8_t*>(p.scratch));
}
