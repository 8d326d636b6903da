// The contract between the model walk and the instruction-set units: layouts, argument structs and
// the table of function pointers. Everything here is plain data; every unit computes the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Weight formats after packing. A panel is 32 output columns; a group is 32 input elements; a
// panel is one contiguous stream of groups (K-quants put a header before every 8 groups).
enum class Format : uint8_t { q4_1, q4_0, q5_0, q8_0, q4_k, q6_k, f32, f16, bf16 };
inline constexpr int kNumFormats = 9;
inline constexpr int kNumIntFormats = 6;
inline constexpr int kPanel = 32;
inline constexpr int kGroup = 32;
inline constexpr int kTile = 16;      // tokens of one attention tile, lanes of one vector
inline constexpr int kSegment = 256;  // positions of one softmax segment, aligned to 0

// What K and V are rounded to in the cache; see kv.hpp.
enum class KvType : uint8_t { bf16, int8 };
inline constexpr int kNumKvTypes = 2;
// Sums of 16-bit times 8-bit numbers over a longer head would not fit 32 bits.
inline constexpr int kMaxInt8HeadDim = 512;

struct FormatInfo {
  int group_bytes;
  int super_groups;  // groups behind one header, 0 without headers
  int super_bytes;   // bytes of the header
};

constexpr FormatInfo format_info(Format format) {
  switch (format) {
    case Format::q4_1: return {512 + 64 + 64, 0, 0};
    case Format::q4_0: return {512 + 64, 0, 0};
    case Format::q5_0: return {512 + 128 + 64, 0, 0};
    case Format::q8_0: return {1024 + 64, 0, 0};
    case Format::q4_k: return {512 + 32 + 32, 8, 128};
    case Format::q6_k: return {512 + 256 + 64, 8, 64};
    case Format::f32: return {4096, 0, 0};
    default: return {2048, 0, 0};
  }
}

constexpr size_t panel_bytes(Format format, int groups) {
  const FormatInfo info = format_info(format);
  const size_t supers = info.super_groups ? size_t(groups / info.super_groups) : 0;
  return size_t(groups) * info.group_bytes + supers * info.super_bytes;
}

// Activations packed for the matrix kernels in blocks of `lanes` rows (1 or 4).
// ints:   per block and group 96·lanes bytes: int8 low [8][lanes][4], float scale[lanes],
//         float scale·Σq[lanes], int32 −Σq of all 32, of the first 16, of the last 16, int32 wide,
//         and int8 high [8][lanes][4]: a group that is wide for its row has 15-bit values
//         128·high + low. Kernels read `high` if it is wide for any row of the block; it is zero
//         for the others, so that their sums stay the same integers.
// floats: per block [groups · 32][lanes].
struct PackedRows {
  uint8_t* ints = nullptr;
  float* floats = nullptr;
  int groups = 0;
  int lanes = 1;

  size_t int_group_bytes() const { return size_t(96) * lanes; }
  size_t int_block_bytes() const { return size_t(groups) * int_group_bytes(); }
  size_t float_block_size() const { return size_t(groups) * kGroup * lanes; }
};

// out[row, 0..columns) (+)= acts[row] · panel, summed over fixed K-slices in ascending order.
struct PanelGemm {
  const uint8_t* weights;
  PackedRows acts;
  int first_block;        // row blocks [first_block, last_block) are computed
  int last_block;
  const int* slice_ends;  // in groups, ascending, the last one is `groups`
  int num_slices;
  float* out;             // row 0 of block 0, at the panel's first column
  size_t out_stride;      // floats per row
  int columns;            // at most 32; columns beyond stay untouched
  const float* bias;      // 32 values or null
  bool residual;          // add to what `out` holds
  float* scratch;         // max(groups · 32, 2 · rows) · 32 floats, for what is unpacked first
  const uint8_t* next;    // panel to prefetch, or null
};
using GemmFn = void (*)(const PanelGemm&);

// One KV head of one sequence: query rows attend from the cache.
struct Attention {
  const uint8_t* layer;    // the layer's pages
  size_t page_bytes;
  size_t head_offset;      // of the KV head inside a page
  const int32_t* table;    // the row's block table
  int first_position;      // position of the table's first entry
  int block_size;
  int head_dim;
  int window;              // 0: none
  int num_rows;
  const float* const* q;   // per row, rotated and scaled
  const int32_t* position;  // per row
  float* out;              // [num_rows][head_dim]
  float* scratch;          // 4 · (kSegment + head_dim) floats
  // Results of whole segments: per row head_dim weighted sums, the peak and the total.
  // attention_segment writes those of `segment` here; attention takes those of the segments before
  // `segment` from here, `segment_stride` floats apart, and goes on behind them.
  float* partial;
  size_t segment_stride;
  int segment;
  const Attention* next;   // what this thread will take next: its first pages are fetched; or null
};
inline constexpr size_t partial_stride(int head_dim) { return size_t(head_dim) + 16; }

struct Norm {
  const float* weight;
  int size;
  size_t stride;  // floats per row of x
  float eps;
  float wide;
};

struct GatePanel {
  const float* gate;  // [row_end - row_begin][32]
  const float* up;
  int row_begin;
  int row_end;
  const float* rms;  // per row
  float wide;        // limit of a narrow group, in units of rms
};

struct Kernels {
  const char* name;
  GemmFn gemm_int[kNumIntFormats][2];  // [format][lanes == 4]
  GemmFn gemm_float[kNumFormats][2];
  // y = rmsnorm(x) · weight over `size` (padded to whole groups with zeros) → packed; groups
  // whose largest value is above wide · rms(y) are wide. All rows of a block; rms(x) of each.
  void (*norm_pack)(const Norm& norm, const float* x, const PackedRows& out, int block,
                    float* rms);
  // One group of 32 values → packed, wide if one is above `limit`.
  void (*pack_group)(const float* values, float limit, const PackedRows& out, int row, int group);
  // silu(gate) · up of rows [begin, end) of one 32-column panel → packed group, wide if a value is
  // above limits[row] · wide.
  void (*gate_pack)(const GatePanel& panel, const PackedRows& out, int group);
  void (*attention[kNumKvTypes])(const Attention&);
  void (*attention_segment[kNumKvTypes])(const Attention&);
  double (*probe_int8)(int repeats);  // int8 operations done
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512VnniKernels;
#endif

}  // namespace octavo
