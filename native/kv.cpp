#include "kv.hpp"

#include <algorithm>
#include <cstring>

namespace octavo {
namespace {

constexpr int kBatch = 16;  // compilers make vectors of the conversion, not of scattered stores
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr float kLargest = 127.0f;      // of the whole numbers
constexpr float kSmallest = 0x1p-100f;  // rows below are zero: their inverse would overflow

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t to_bf16(float value) {  // to nearest even; NaN stays NaN
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const bool nan = int32_t(bits & 0x7fffffffu) > int32_t(kInfinity);
  return uint16_t((nan ? bits | 0x400000u : rounded) >> 16);
}

// One token's elements inside a head's page: dimension d of K is k[(d & ~1) · 16 + (d & 1)], of V
// v[2 · d].
template <class T>
struct Slot {
  T* k;
  T* v;

  Slot(const KvLayout& layout, uint8_t* head, int offset) {
    T* base = reinterpret_cast<T*>(head);
    const size_t dim = size_t(layout.head_dim);
    k = base + size_t(offset / kTile) * dim * kTile + size_t(offset % kTile) * 2;
    v = base + size_t(layout.block_size) * dim + size_t(offset / 2) * dim * 2 + offset % 2;
  }
};

// Where the token's scales are: K's here, V's `block_size` floats behind.
uint8_t* scales_of(const KvLayout& layout, uint8_t* head, int offset) {
  return head + size_t(layout.block_size) * size_t(layout.head_dim) * 2 + size_t(offset) * 4;
}

template <class T, class Round>
void store(const Slot<T>& to, int head_dim, const float* k, const float* v, Round&& round) {
  for (int first = 0; first < head_dim; first += kBatch) {
    T some_k[kBatch], some_v[kBatch];
    for (int i = 0; i < kBatch; ++i) some_k[i] = round(k[first + i], 0);
    for (int i = 0; i < kBatch; ++i) some_v[i] = round(v[first + i], 1);
    for (int i = 0; i < kBatch; i += 2) {
      std::memcpy(to.k + (first + i) * kTile, some_k + i, 2 * sizeof(T));
    }
    for (int i = 0; i < kBatch; ++i) to.v[2 * (first + i)] = some_v[i];
  }
}

// The scale of one row and what its values are multiplied by before they are rounded.
struct Scale {
  float value, inverse;
};

// NaN for a row that holds NaN or an infinity: as bits, these are the largest.
Scale scale_of(const float* row, int size) {
  uint32_t most = 0;
  for (int i = 0; i < size; ++i) most = std::max(most, bits_of(row[i]) & 0x7fffffffu);
  if (most >= kInfinity) return {float_of(kInfinity | 0x400000u), 0.0f};
  const float peak = float_of(most);
  if (peak < kSmallest) return {0.0f, 0.0f};
  return {peak / kLargest, kLargest / peak};
}

// Whole numbers nearest to value · inverse, ties to even: adding 1.5 · 2^23 leaves no fraction.
inline int8_t to_int8(float value, float inverse) {
  return int8_t(int32_t(bits_of(value * inverse + 12582912.0f)) - 0x4b400000);
}

template <class T>
void copy_slot(const KvLayout& layout, uint8_t* from_head, uint8_t* to_head, int token) {
  const Slot<T> from(layout, from_head, token), to(layout, to_head, token);
  for (int d = 0; d < layout.head_dim; d += 2) {
    std::memcpy(to.k + d * kTile, from.k + d * kTile, 2 * sizeof(T));
  }
  for (int d = 0; d < layout.head_dim; ++d) to.v[2 * d] = from.v[2 * d];
}

template <class T, class Widen>
void load(const Slot<T>& from, int head_dim, float* k, float* v, Widen&& widen) {
  for (int d = 0; d < head_dim; ++d) {
    k[d] = widen(from.k[(d / 2) * 2 * kTile + d % 2], 0);
    v[d] = widen(from.v[2 * d], 1);
  }
}

}  // namespace

KvPool::KvPool(const KvLayout& layout) : layout_(layout) {
  size_t total = 0;
  for (int layers : layout.group_layers) {
    group_offset_.push_back(total);
    total += size_t(layers) * size_t(layout.num_blocks) * layout.page_bytes();
  }
  memory_ = Mapping(total, false);
}

uint8_t* KvPool::layer_base(int group, int layer) const {
  return memory_.data() + group_offset_[size_t(group)] +
         size_t(layer) * size_t(layout_.num_blocks) * layout_.page_bytes();
}

uint8_t* KvPool::head_page(int group, int layer, int block, int head) const {
  return layer_base(group, layer) + size_t(block) * layout_.page_bytes() +
         size_t(head) * layout_.head_bytes();
}

void KvPool::write(int group, int layer, int block, int offset, int head, const float* k,
                   const float* v) {
  uint8_t* page = head_page(group, layer, block, head);
  const int size = layout_.head_dim;
  if (layout_.type == KvType::bf16) {
    store(Slot<uint16_t>(layout_, page, offset), size, k, v,
          [](float value, int) { return to_bf16(value); });
    return;
  }
  const Scale scale[2] = {scale_of(k, size), scale_of(v, size)};
  store(Slot<int8_t>(layout_, page, offset), size, k, v,
        [&](float value, int which) { return to_int8(value, scale[which].inverse); });
  uint8_t* to = scales_of(layout_, page, offset);
  std::memcpy(to, &scale[0].value, 4);
  std::memcpy(to + size_t(layout_.block_size) * 4, &scale[1].value, 4);
}

void KvPool::copy(int group, int layer, int from, int to, int tokens) {
  for (int h = 0; h < layout_.num_kv_heads; ++h) {
    uint8_t* source = head_page(group, layer, from, h);
    uint8_t* target = head_page(group, layer, to, h);
    const bool ints = layout_.type == KvType::int8;
    for (int t = 0; t < tokens; ++t) {
      (ints ? copy_slot<int8_t> : copy_slot<uint16_t>)(layout_, source, target, t);
    }
    if (!ints) continue;
    const size_t bytes = size_t(tokens) * 4, values = size_t(layout_.block_size) * 4;
    uint8_t* scales = scales_of(layout_, source, 0);
    uint8_t* to_scales = scales_of(layout_, target, 0);
    std::memcpy(to_scales, scales, bytes);
    std::memcpy(to_scales + values, scales + values, bytes);
  }
}

void KvPool::read(int group, int layer, int block, float* k, float* v) const {
  const int size = layout_.head_dim;
  for (int t = 0; t < layout_.block_size; ++t) {
    for (int h = 0; h < layout_.num_kv_heads; ++h, k += size, v += size) {
      uint8_t* page = head_page(group, layer, block, h);
      if (layout_.type == KvType::bf16) {
        load(Slot<uint16_t>(layout_, page, t), size, k, v,
             [](uint16_t half, int) { return float_of(uint32_t(half) << 16); });
        continue;
      }
      float scale[2];
      const uint8_t* from = scales_of(layout_, page, t);
      std::memcpy(&scale[0], from, 4);
      std::memcpy(&scale[1], from + size_t(layout_.block_size) * 4, 4);
      load(Slot<int8_t>(layout_, page, t), size, k, v,
           [&](int8_t number, int which) { return float(number) * scale[which]; });
    }
  }
}

void KvPool::poison(int block) {
  for (size_t group = 0; group < layout_.group_layers.size(); ++group) {
    for (int layer = 0; layer < layout_.group_layers[group]; ++layer) {
      uint8_t* page = layer_base(int(group), layer) + size_t(block) * layout_.page_bytes();
      std::memset(page, 0xff, layout_.page_bytes());
    }
  }
}

}  // namespace octavo
