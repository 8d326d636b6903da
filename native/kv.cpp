#include "kv.hpp"

#include <cstring>

namespace octavo {
namespace {

constexpr int kTileTokens = 16;

inline uint16_t to_bf16(float value) {  // to nearest even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const bool nan = int32_t(bits & 0x7fffffffu) > 0x7f800000;
  return uint16_t((nan ? bits | 0x400000u : rounded) >> 16);
}

float from_bf16(uint16_t half) {
  const uint32_t bits = uint32_t(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
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

uint16_t* KvPool::k_slot(uint8_t* head, int offset) const {
  const size_t tile = size_t(offset / kTileTokens) * size_t(layout_.head_dim) * kTileTokens;
  return reinterpret_cast<uint16_t*>(head) + tile + size_t(offset % kTileTokens) * 2;
}

uint16_t* KvPool::v_slot(uint8_t* head, int offset) const {
  uint16_t* base = reinterpret_cast<uint16_t*>(head + layout_.head_bytes() / 2);
  return base + size_t(offset / 2) * size_t(layout_.head_dim) * 2 + offset % 2;
}

void KvPool::write(int group, int layer, int block, int offset, int head, const float* k,
                   const float* v) {
  uint8_t* page = layer_base(group, layer) + size_t(block) * layout_.page_bytes() +
                  size_t(head) * layout_.head_bytes();
  uint16_t* to_k = k_slot(page, offset);
  uint16_t* to_v = v_slot(page, offset);
  // In batches: compilers make vectors of the conversion, not of the scattered stores.
  constexpr int kBatch = 16;
  for (int first = 0; first < layout_.head_dim; first += kBatch) {
    uint16_t some_k[kBatch], some_v[kBatch];
    for (int i = 0; i < kBatch; ++i) some_k[i] = to_bf16(k[first + i]);
    for (int i = 0; i < kBatch; ++i) some_v[i] = to_bf16(v[first + i]);
    for (int i = 0; i < kBatch; i += 2) {
      std::memcpy(to_k + (first + i) * kTileTokens, some_k + i, 4);
    }
    for (int i = 0; i < kBatch; ++i) to_v[2 * (first + i)] = some_v[i];
  }
}

void KvPool::copy(int group, int layer, int from, int to, int tokens) {
  uint8_t* base = layer_base(group, layer);
  for (int h = 0; h < layout_.num_kv_heads; ++h) {
    uint8_t* source = base + size_t(from) * layout_.page_bytes() + size_t(h) * layout_.head_bytes();
    uint8_t* target = base + size_t(to) * layout_.page_bytes() + size_t(h) * layout_.head_bytes();
    for (int t = 0; t < tokens; ++t) {
      const uint16_t* k = k_slot(source, t);
      const uint16_t* v = v_slot(source, t);
      uint16_t* to_k = k_slot(target, t);
      uint16_t* to_v = v_slot(target, t);
      for (int d = 0; d < layout_.head_dim; d += 2) {
        std::memcpy(to_k + d * kTileTokens, k + d * kTileTokens, 4);
      }
      for (int d = 0; d < layout_.head_dim; ++d) to_v[2 * d] = v[2 * d];
    }
  }
}

void KvPool::read(int group, int layer, int block, float* k, float* v) const {
  uint8_t* page = layer_base(group, layer) + size_t(block) * layout_.page_bytes();
  for (int t = 0; t < layout_.block_size; ++t) {
    for (int h = 0; h < layout_.num_kv_heads; ++h) {
      uint8_t* head = page + size_t(h) * layout_.head_bytes();
      const uint16_t* from_k = k_slot(head, t);
      const uint16_t* from_v = v_slot(head, t);
      for (int d = 0; d < layout_.head_dim; ++d) {
        *k++ = from_bf16(from_k[(d / 2) * 2 * kTileTokens + d % 2]);
        *v++ = from_bf16(from_v[2 * d]);
      }
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
