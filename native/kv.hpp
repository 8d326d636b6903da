// The paged KV pool. This file alone knows how tokens lie in a page.
//
//   group → layer → block → page:  per KV head   K [block/16][head_dim/2][16][2] bf16
//                                                V [block/2][head_dim][2]        bf16
#pragma once

#include <cstdint>
#include <vector>

#include "memory.hpp"

namespace octavo {

struct KvLayout {
  int block_size = 16;
  int num_blocks = 0;
  std::vector<int> group_layers;
  int num_kv_heads = 1;
  int head_dim = 64;

  size_t head_bytes() const { return size_t(block_size) * size_t(head_dim) * 4; }
  size_t page_bytes() const { return head_bytes() * size_t(num_kv_heads); }
};

class KvPool {
 public:
  KvPool() = default;
  explicit KvPool(const KvLayout& layout);

  const KvLayout& layout() const { return layout_; }
  const uint8_t* layer(int group, int layer) const { return layer_base(group, layer); }
  // Writes one token's K and V of one head, rounded to bf16.
  void write(int group, int layer, int block, int offset, int head, const float* k,
             const float* v);
  // Copies the first `tokens` slots of every head.
  void copy(int group, int layer, int from, int to, int tokens);
  // K and V of a block as float [block_size][heads][head_dim].
  void read(int group, int layer, int block, float* k, float* v) const;
  // Fills a block of every group and layer with NaN.
  void poison(int block);
  const Mapping& mapping() const { return memory_; }

 private:
  uint8_t* layer_base(int group, int layer) const;
  uint16_t* k_slot(uint8_t* head, int offset) const;
  uint16_t* v_slot(uint8_t* head, int offset) const;

  KvLayout layout_;
  std::vector<size_t> group_offset_;
  Mapping memory_;
};

}  // namespace octavo
