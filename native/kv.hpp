// The paged KV pool. This file alone knows how tokens lie in a page.
//
//   group → layer → block → page:  per KV head   K [block/16][head_dim/2][16][2]
//                                                V [block/2][head_dim][2]
//   Elements are bf16, or int8 with a float scale per token behind them: K [block], V [block].
//   A scale belongs to one token: it moves with it in copies, and no neighbour changes its bits.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.hpp"
#include "memory.hpp"

namespace octavo {

struct KvLayout {
  KvType type = KvType::bf16;
  int block_size = 16;
  int num_blocks = 0;
  std::vector<int> group_layers;
  int num_kv_heads = 1;
  int head_dim = 64;

  // K and V of one token and head.
  size_t token_bytes() const {
    return type == KvType::int8 ? size_t(head_dim) * 2 + 8 : size_t(head_dim) * 4;
  }
  size_t head_bytes() const { return size_t(block_size) * token_bytes(); }
  size_t page_bytes() const { return head_bytes() * size_t(num_kv_heads); }
};

class KvPool {
 public:
  KvPool() = default;
  explicit KvPool(const KvLayout& layout);

  const KvLayout& layout() const { return layout_; }
  const uint8_t* layer(int group, int layer) const { return layer_base(group, layer); }
  // Writes one token's K and V of one head, rounded to the pool's type.
  void write(int group, int layer, int block, int offset, int head, const float* k,
             const float* v);
  // Copies the first `tokens` slots of every head.
  void copy(int group, int layer, int from, int to, int tokens);
  // K and V of a block as float [block_size][heads][head_dim].
  void read(int group, int layer, int block, float* k, float* v) const;
  // Fills a block of every group and layer with what reads as NaN.
  void poison(int block);
  const Mapping& mapping() const { return memory_; }

 private:
  uint8_t* layer_base(int group, int layer) const;
  uint8_t* head_page(int group, int layer, int block, int head) const;

  KvLayout layout_;
  std::vector<size_t> group_offset_;
  Mapping memory_;
};

}  // namespace octavo
