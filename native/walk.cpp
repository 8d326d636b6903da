// The walk: one step of the whole program on all threads, from block copies to sampled tokens.
//
// Every thread runs the same sequence of phases; a phase hands out its items through the queue and
// ends in a barrier. Which thread computes an item never changes its bits.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "model.hpp"
#include "shared_pages.hpp"

namespace octavo {
namespace {

constexpr int kBlocksPerChunk = kRowsPerChunk / 4;
constexpr int kAttentionRows = 24;   // query rows (tokens · heads per KV head) of one item
constexpr int kItemsPerThread = 4;   // fewer leave threads idle at the end of a phase

// Written so that compilers make vectors of it: the pointers never overlap.
template <int Step>
void rotate_pairs(const float* __restrict cosine, const float* __restrict sine, int count,
                  float scale, float* __restrict first, float* __restrict second) {
  for (int i = 0; i < count; ++i) {
    const float a = first[i * Step], b = second[i * Step];
    first[i * Step] = (a * cosine[i] - b * sine[i]) * scale;
    second[i * Step] = (b * cosine[i] + a * sine[i]) * scale;
  }
}

}  // namespace

class Walk {
 public:
  Walk(Model& model, StepArrays& step);
  void run();

 private:
  using Op = Model::Op;
  using Linear = Model::Linear;

  // Query tokens [token, token + count) of a row; outputs go to activation rows from `out` on.
  struct Span {
    int row, token, count, out;
  };
  // What one thread knows; equal on all threads but for `index`.
  struct Thread {
    int index;
    uint16_t tag;
    int rows;    // activation rows now: tokens, later only those that sample
    int lanes;
    int blocks;  // of `lanes` rows
    const float* rms = nullptr;  // per row of the latest norm
    std::chrono::steady_clock::time_point mark{};  // end of the latest stage, in profiles

    void set_rows(int count) {
      rows = count;
      lanes = count == 1 ? 1 : 4;
      blocks = (count + lanes - 1) / lanes;
    }
  };

  void thread_main(int index);
  template <class Fn>
  void phase(Thread& t, int items, Fn&& fn);
  void copy_blocks(Thread& t);
  void embed(Thread& t);
  PackedRows pack_norm(Thread& t, const Op& op);
  void multiply(Thread& t, const Linear& linear, const PackedRows& in, float* out, size_t stride,
                bool residual);
  void run_panel(const Thread& t, const Linear& linear, size_t index, PanelGemm& args) const;
  void attention(Thread& t, const Op& op, bool last);
  void rotate_and_write(const Op& op, int token, int kv_head) const;
  void rotate(const Op& op, int token, float* head, float scale) const;
  void attend(const Thread& t, const Op& op, const Span& span, int kv_head) const;
  void attend_task(const Thread& t, const Op& op, const SharedPages::Task& task,
                   int kv_head) const;
  Attention attention_of(const Thread& t, const Op& op, const Span& span, int kv_head) const;
  float* partial(const AttentionSpec& spec, int record, int kv_head) const;
  const SharedPages* shared_pages(const AttentionSpec& spec, bool all) const;
  PackedRows attended_rows(const Thread& t, const Op& op) const;
  void pack_attended(Thread& t, const Op& op);
  void norm_mlp(Thread& t, const Op& op);
  void gate_up(const Thread& t, const Op& op, int item, const PackedRows& in,
               const PackedRows& out) const;
  void head(Thread& t, const Op& op);
  void gather_sampled() const;
  void sample(int s, int thread) const;
  void read_hidden(int s, const Op& op) const;
  void plan_attention();
  void charge(Thread& t, Stage stage, size_t bytes, size_t operations) const;
  void charge(Thread& t, const Op& op) const;
  void charge_attention(Thread& t, const AttentionSpec& spec) const;

  float* x(int row) const { return model_.x_.data() + size_t(row) * size_t(model_.hidden_stride_); }
  float* qkv(int token) const {
    return model_.qkv_.data() + size_t(token) * size_t(model_.qkv_stride_);
  }
  const float* cos_sin(int rope, int token) const;

  Model& model_;
  const Kernels& kernels_;
  StepArrays& step_;
  std::vector<int> row_of_token_;
  std::vector<int> sampled_;     // distinct sampled tokens, ascending
  std::vector<int> logits_row_;  // per sample, its place in sampled_
  std::vector<Span> spans_, last_spans_;
  std::vector<SharedPages> shared_;  // per KV group
  bool decode_only_ = false;     // every row has one token: write and attend in one phase
  int rope_width_ = 0;
};

Walk::Walk(Model& model, StepArrays& step)
    : model_(model), kernels_(*model.options_.kernels), step_(step) {
  row_of_token_.resize(size_t(step.num_tokens));
  for (int r = 0; r < step.num_rows; ++r) {
    for (int t = step.query_start[r]; t < step.query_start[r + 1]; ++t) {
      row_of_token_[size_t(t)] = r;
    }
  }
  sampled_.assign(step.token_index, step.token_index + step.num_samples);
  std::sort(sampled_.begin(), sampled_.end());
  sampled_.erase(std::unique(sampled_.begin(), sampled_.end()), sampled_.end());
  for (int s = 0; s < step.num_samples; ++s) {
    const auto at = std::lower_bound(sampled_.begin(), sampled_.end(), step.token_index[s]);
    logits_row_.push_back(int(at - sampled_.begin()));
  }
  for (const auto& rope : model.ropes_) rope_width_ += 2 * int(rope.size());
  // Kernels write whole blocks of rows.
  const size_t logits = (sampled_.size() + 3) / 4 * 4 * size_t(model.options_.vocab);
  if (model.logits_.size() < logits) model.logits_.resize(logits);
  plan_attention();
}

void Walk::plan_attention() {
  if (model_.last_attention_ < 0) return;
  const AttentionSpec& spec = model_.ops_[size_t(model_.last_attention_)].attention;
  const int most = std::max(1, kAttentionRows / (spec.heads / spec.kv_heads));
  decode_only_ = step_.num_rows == step_.num_tokens;
  for (int r = 0; r < step_.num_rows; ++r) {
    for (int t = step_.query_start[r]; t < step_.query_start[r + 1]; t += most) {
      spans_.push_back({r, t, std::min(most, step_.query_start[r + 1] - t), t});
    }
  }
  for (size_t i = 0; i < sampled_.size(); ++i) {
    last_spans_.push_back({row_of_token_[size_t(sampled_[i])], sampled_[i], 1, int(i)});
  }
  const bool few = step_.num_rows * spec.kv_heads < kItemsPerThread * model_.pool_->size();
  size_t records = 0;
  for (const StepArrays::Table& table : step_.tables) {
    shared_.push_back(find_shared_pages(step_, table, model_.options_.kv.block_size, few));
    records = std::max(records, size_t(shared_.back().num_records));
  }
  const size_t size = records * size_t(spec.heads) * partial_stride(spec.head_dim);
  if (model_.partials_.size() < size) model_.partials_.resize(size);
}

void Walk::run() {
  const auto entry = [](void* self, int thread) { static_cast<Walk*>(self)->thread_main(thread); };
  model_.pool_->run(entry, this);
}

template <class Fn>
void Walk::phase(Thread& t, int items, Fn&& fn) {
  ++t.tag;
  for (int i = model_.queue_->next(t.index, t.tag, items); i >= 0;
       i = model_.queue_->next(t.index, t.tag, items)) {
    fn(i);
  }
  model_.pool_->barrier();
}

void Walk::thread_main(int index) {
  Thread t{index, model_.phase_tag_, 0, 1, 0};
  t.set_rows(step_.num_tokens);
  t.mark = std::chrono::steady_clock::now();
  if (step_.num_copies > 0) {
    copy_blocks(t);
    charge(t, Stage::copy, 0, 0);
  }
  embed(t);
  charge(t, Stage::embed, 0, 0);
  const int ops = int(model_.ops_.size());
  for (int i = 0; i < ops; ++i) {
    const Op& op = model_.ops_[size_t(i)];
    switch (op.kind) {
      case Stage::norm_linear:
        multiply(t, op.first, pack_norm(t, op), model_.qkv_.data(), size_t(model_.qkv_stride_),
                 false);
        break;
      case Stage::attention: attention(t, op, i == model_.last_attention_); break;
      case Stage::linear_residual:
        multiply(t, op.first, model_.attention_rows_.view(op.first, t.lanes),
                 model_.x_.data(), size_t(model_.hidden_stride_), true);
        break;
      case Stage::norm_mlp: norm_mlp(t, op); break;
      default: head(t, op); break;
    }
    if (op.kind != Stage::head) charge(t, op);
    if (t.rows == 0) break;  // nothing samples: the caches are written, the rest has no reader
  }
  if (index == 0) model_.phase_tag_ = t.tag;
}

// Charges the time since the last charge to a stage whose last barrier is behind us.
void Walk::charge(Thread& t, Stage stage, size_t bytes, size_t operations) const {
  if (!model_.profiling_ || t.index != 0) return;
  const auto now = std::chrono::steady_clock::now();
  Cost& cost = model_.costs_[size_t(stage)];
  cost.calls += 1;
  cost.seconds += std::chrono::duration<double>(now - t.mark).count();
  cost.read_bytes += int64_t(bytes);
  cost.operations += int64_t(operations);
  t.mark = now;
}

void Walk::charge(Thread& t, const Op& op) const {
  if (!model_.profiling_ || t.index != 0) return;
  if (op.kind == Stage::attention) return charge_attention(t, op.attention);
  size_t bytes = 0, operations = 0;
  for (const Linear* linear : {&op.first, &op.second}) {
    bytes += linear->bytes();
    operations += 2 * size_t(t.rows) * size_t(linear->groups) * kGroup * size_t(linear->outputs);
  }
  charge(t, op.kind, bytes, operations);
}

void Walk::charge_attention(Thread& t, const AttentionSpec& spec) const {
  size_t seen = 0, pairs = 0;
  for (int r = 0; r < step_.num_rows; ++r) {
    const int count = step_.query_start[r + 1] - step_.query_start[r];
    for (int i = 0; i < count; ++i) {
      const int visible = step_.context_lens[r] + i + 1;
      pairs += size_t(spec.window > 0 ? std::min(visible, spec.window) : visible);
    }
    const int last = step_.context_lens[r] + count;
    seen += size_t(spec.window > 0 ? std::min(last, spec.window + count - 1) : last);
  }
  if (const SharedPages* shared = shared_pages(spec, t.rows == step_.num_tokens)) {
    for (const SharedPages::Task& task : shared->tasks) {
      seen -= size_t(task.end - task.begin - 1) * kSegment;  // read once for all of them
    }
  }
  charge(t, Stage::attention, seen * size_t(spec.kv_heads) * model_.options_.kv.token_bytes(),
         pairs * size_t(spec.heads * spec.head_dim) * 4);
}

void Walk::copy_blocks(Thread& t) {
  const auto& layers = model_.options_.kv.group_layers;
  const int most = *std::max_element(layers.begin(), layers.end());
  phase(t, step_.num_copies * most, [&](int item) {
    const int32_t* copy = step_.copies + 4 * (item / most);
    const int layer = item % most;
    if (layer < layers[size_t(copy[0])]) {
      model_.kv_.copy(copy[0], layer, copy[1], copy[2], copy[3]);
    }
  });
}

const float* Walk::cos_sin(int rope, int token) const {
  const float* at = model_.cos_sin_.data() + size_t(token) * size_t(rope_width_);
  for (int i = 0; i < rope; ++i) at += 2 * model_.ropes_[size_t(i)].size();
  return at;
}

void Walk::embed(Thread& t) {
  phase(t, step_.num_tokens, [&](int token) {
    float* out = x(token);
    dequantize_row(model_.embedding_, step_.token_ids[token], out);
    if (model_.embedding_scale_ != 1.0f) {
      for (int i = 0; i < model_.options_.hidden; ++i) out[i] *= model_.embedding_scale_;
    }
    const int row = row_of_token_[size_t(token)];
    const int position = step_.context_lens[row] + token - step_.query_start[row];
    for (size_t rope = 0; rope < model_.ropes_.size(); ++rope) {
      const std::vector<float>& frequencies = model_.ropes_[rope];
      float* cosine = const_cast<float*>(cos_sin(int(rope), token));
      float* sine = cosine + frequencies.size();
      for (size_t i = 0; i < frequencies.size(); ++i) {
        const double angle = double(float(position) * frequencies[i]);
        cosine[i] = float(std::cos(angle));
        sine[i] = float(std::sin(angle));
      }
    }
  });
}

// Normalised and packed rows of x. A single row is packed by every thread for itself: cheaper than
// a barrier.
PackedRows Walk::pack_norm(Thread& t, const Op& op) {
  const Norm norm{op.norm.data(), model_.options_.hidden, size_t(model_.hidden_stride_),
                  op.eps, op.first.wide};
  if (t.rows == 1) {
    Model::ThreadScratch& scratch = model_.thread_scratch_[size_t(t.index)];
    const PackedRows out = scratch.norm_row.view(op.first, 1);
    t.rms = &scratch.row_rms;
    kernels_.norm_pack(norm, x(0), out, 0, &scratch.row_rms);
    return out;
  }
  const PackedRows out = model_.norm_rows_.view(op.first, t.lanes);
  t.rms = model_.row_rms_.data();
  phase(t, t.blocks, [&](int block) {
    const int row = block * t.lanes;
    kernels_.norm_pack(norm, x(row), out, block, &model_.row_rms_[size_t(row)]);
  });
  return out;
}

void Walk::run_panel(const Thread& t, const Linear& linear, size_t index, PanelGemm& args) const {
  const Model::Panel& panel = linear.panels[index];
  const bool ints = model_.options_.int8_activations && int(panel.format) < kNumIntFormats;
  args.weights = panel.data;
  args.columns = panel.columns;
  args.bias = panel.bias;
  args.next = panel.data + panel_bytes(panel.format, linear.groups);
  args.scratch = model_.thread_scratch_[size_t(t.index)].unpacked.data();
  const int format = int(panel.format);
  const GemmFn* table = !ints ? kernels_.gemm_float[format]
                              : kernels_.gemm_int[format];
  table[args.acts.lanes == 4](args);
}

void Walk::multiply(Thread& t, const Linear& linear, const PackedRows& in, float* out,
                    size_t stride, bool residual) {
  const int units = linear.units();
  const int chunks = (t.blocks + kBlocksPerChunk - 1) / kBlocksPerChunk;
  phase(t, units * chunks, [&](int item) {
    const int chunk = item / units;
    const size_t index = size_t(item % units);
    PanelGemm args{};
    args.acts = in;
    args.first_block = chunk * kBlocksPerChunk;
    args.last_block = std::min(t.blocks, args.first_block + kBlocksPerChunk);
    args.slice_ends = linear.slice_ends.data();
    args.num_slices = int(linear.slice_ends.size());
    args.out = out + linear.panels[index].column;
    args.out_stride = stride;
    args.residual = residual;
    run_panel(t, linear, index, args);
  });
}

void Walk::rotate(const Op& op, int token, float* head, float scale) const {
  const int half = op.attention.head_dim / 2;
  const float* cosine = cos_sin(op.rope, token);
  const float* sine = cosine + half;
  if (op.attention.interleaved) {
    rotate_pairs<2>(cosine, sine, half, scale, head, head + 1);
  } else {
    rotate_pairs<1>(cosine, sine, half, scale, head, head + half);
  }
}

void Walk::rotate_and_write(const Op& op, int token, int kv_head) const {
  const AttentionSpec& spec = op.attention;
  const int ratio = spec.heads / spec.kv_heads;
  float* row = qkv(token);
  for (int i = 0; i < ratio; ++i) {
    rotate(op, token, row + (kv_head * ratio + i) * spec.head_dim, spec.scale);
  }
  float* k = row + (spec.heads + kv_head) * spec.head_dim;
  float* v = row + (spec.heads + spec.kv_heads + kv_head) * spec.head_dim;
  rotate(op, token, k, 1.0f);
  const int r = row_of_token_[size_t(token)];
  const StepArrays::Table& table = step_.tables[size_t(spec.group)];
  const int position = step_.context_lens[r] + token - step_.query_start[r];
  const int relative = position - table.first_position[r];
  const int size = model_.options_.kv.block_size;
  const int32_t* line = table.blocks + size_t(step_.slots[r]) * size_t(table.width);
  model_.kv_.write(spec.group, spec.layer, line[relative / size], relative % size, kv_head, k, v);
}

// What all query heads of a span that share a KV head need, but for q, position and num_rows.
Attention Walk::attention_of(const Thread& t, const Op& op, const Span& span, int kv_head) const {
  const AttentionSpec& spec = op.attention;
  const KvLayout& layout = model_.options_.kv;
  const StepArrays::Table& table = step_.tables[size_t(spec.group)];
  std::vector<float>& scratch = model_.thread_scratch_[size_t(t.index)].attention;
  Attention args{};
  args.layer = model_.kv_.layer(spec.group, spec.layer);
  args.page_bytes = layout.page_bytes();
  args.head_offset = size_t(kv_head) * layout.head_bytes();
  args.table = table.blocks + size_t(step_.slots[span.row]) * size_t(table.width);
  args.first_position = table.first_position[span.row];
  args.block_size = layout.block_size;
  args.head_dim = spec.head_dim;
  args.window = spec.window;
  args.scratch = scratch.data();
  args.out = scratch.data() + 4 * (kSegment + spec.head_dim);
  args.segment_stride = size_t(spec.heads) * partial_stride(spec.head_dim);
  return args;
}

// The results of one KV head's query heads in one segment of one row.
float* Walk::partial(const AttentionSpec& spec, int record, int kv_head) const {
  const size_t ratio = size_t(spec.heads / spec.kv_heads);
  return model_.partials_.data() + (size_t(record) * size_t(spec.heads) + size_t(kv_head) * ratio) *
                                       partial_stride(spec.head_dim);
}

// Null where nothing is shared, and in windows and the last layer of a prompt.
const SharedPages* Walk::shared_pages(const AttentionSpec& spec, bool all) const {
  const SharedPages& shared = shared_[size_t(spec.group)];
  return all && spec.window == 0 && !shared.tasks.empty() ? &shared : nullptr;
}

// One segment's pages for every row that reads them, while they are in cache.
void Walk::attend_task(const Thread& t, const Op& op, const SharedPages::Task& task,
                       int kv_head) const {
  const AttentionSpec& spec = op.attention;
  const SharedPages& shared = shared_[size_t(spec.group)];
  const int ratio = spec.heads / spec.kv_heads;
  for (int i = task.begin; i < task.end; ++i) {
    const int row = shared.order[size_t(i)], token = step_.query_start[row];
    Attention args = attention_of(t, op, {row, token, 1, token}, kv_head);
    const float* q[kMaxHeadRatio];
    int32_t position[kMaxHeadRatio];
    for (int h = 0; h < ratio; ++h) {
      q[h] = qkv(token) + (kv_head * ratio + h) * spec.head_dim;
      position[h] = step_.context_lens[row];
    }
    args.q = q;
    args.position = position;
    args.num_rows = ratio;
    args.segment = task.segment;
    args.partial = partial(spec, shared.record[size_t(row)] + task.segment, kv_head);
    kernels_.attention_segment[size_t(model_.options_.kv.type)](args);
  }
}

void Walk::attend(const Thread& t, const Op& op, const Span& span, int kv_head) const {
  const AttentionSpec& spec = op.attention;
  const int ratio = spec.heads / spec.kv_heads;
  const float* q[kMaxHeadRatio];
  int32_t position[kMaxHeadRatio];
  int n = 0;
  for (int i = 0; i < span.count; ++i) {
    const int token = span.token + i;
    for (int h = 0; h < ratio; ++h, ++n) {
      q[n] = qkv(token) + (kv_head * ratio + h) * spec.head_dim;
      position[n] = step_.context_lens[span.row] + token - step_.query_start[span.row];
    }
  }
  Attention args = attention_of(t, op, span, kv_head);
  args.num_rows = n;
  args.q = q;
  args.position = position;
  const bool all = t.rows == step_.num_tokens;
  const SharedPages* shared = shared_pages(spec, all);
  if (shared) {
    args.segment = shared->segments[size_t(span.row)];
    args.partial = partial(spec, shared->record[size_t(span.row)], kv_head);
  }
  Attention next = args;
  if (kv_head + 1 < spec.kv_heads) {
    next.head_offset += model_.options_.kv.head_bytes();
    args.next = &next;
  } else if (decode_only_ && span.row + 1 < step_.num_rows) {
    next = attention_of(t, op, spans_[size_t(span.row) + 1], 0);
    next.position = step_.context_lens + span.row + 1;
    if (shared) next.segment = shared->segments[size_t(span.row) + 1];
    args.next = &next;
  }
  kernels_.attention[size_t(model_.options_.kv.type)](args);
  if (spec.head_dim % kGroup != 0) {  // groups straddle heads: packed when all heads are done
    for (int i = 0; i < n; ++i) {
      float* to = model_.attended_.data() +
                  size_t(span.out + i / ratio) * size_t(attended_rows(t, op).groups) * kGroup;
      std::memcpy(to + (kv_head * ratio + i % ratio) * spec.head_dim,
                  args.out + i * spec.head_dim, size_t(spec.head_dim) * sizeof(float));
    }
    return;
  }
  const PackedRows packed = attended_rows(t, op);
  const float wide = (&op + 1)->first.wide;
  const int per_head = spec.head_dim / kGroup;
  for (int i = 0; i < n; ++i) {
    const int head = kv_head * ratio + i % ratio;
    for (int g = 0; g < per_head; ++g) {
      kernels_.pack_group(args.out + i * spec.head_dim + g * kGroup,
                          wide * t.rms[span.token + i / ratio], packed,
                          span.out + i / ratio, head * per_head + g);
    }
  }
}

// Where an attention op leaves its output: packed for the linear op behind it.
PackedRows Walk::attended_rows(const Thread& t, const Op& op) const {
  const Op& reader = *(&op + 1);
  return model_.attention_rows_.view(reader.first, t.lanes);
}

void Walk::pack_attended(Thread& t, const Op& op) {
  const PackedRows packed = attended_rows(t, op);
  const int groups = packed.groups;
  phase(t, t.rows, [&](int row) {
    const float* from = model_.attended_.data() + size_t(row) * size_t(groups) * kGroup;
    const int token = t.rows == step_.num_tokens ? row : sampled_[size_t(row)];
    const float limit = (&op + 1)->first.wide * t.rms[token];
    for (int g = 0; g < groups; ++g) kernels_.pack_group(from + g * kGroup, limit, packed, row, g);
  });
}

void Walk::attention(Thread& t, const Op& op, bool last) {
  const int heads = op.attention.kv_heads;
  const bool all = !last || int(sampled_.size()) == step_.num_tokens;
  const SharedPages* shared = shared_pages(op.attention, all);
  if (decode_only_ && all && !shared) {
    phase(t, step_.num_rows * heads, [&](int item) {
      rotate_and_write(op, item / heads, item % heads);
      attend(t, op, spans_[size_t(item / heads)], item % heads);
    });
  } else {
    phase(t, step_.num_tokens * heads,
          [&](int item) { rotate_and_write(op, item / heads, item % heads); });
    const std::vector<Span>& spans = all ? spans_ : last_spans_;
    if (!all) {
      t.set_rows(int(sampled_.size()));
      if (t.index == 0) gather_sampled();
    }
    if (shared) {
      phase(t, int(shared->tasks.size()) * heads, [&](int item) {
        attend_task(t, op, shared->tasks[size_t(item / heads)], item % heads);
      });
    }
    phase(t, int(spans.size()) * heads, [&](int item) {
      attend(t, op, spans[size_t(item / heads)], item % heads);
    });
  }
  if (op.attention.head_dim % kGroup != 0) pack_attended(t, op);
  if (t.index == 0) model_.progress_.fetch_add(1, std::memory_order_relaxed);
}

// Moves the residual rows that sample to the front; ascending, so nothing is overwritten unread.
void Walk::gather_sampled() const {
  for (size_t i = 0; i < sampled_.size(); ++i) {
    if (size_t(sampled_[i]) == i) continue;
    std::memcpy(x(int(i)), x(sampled_[i]), size_t(model_.hidden_stride_) * sizeof(float));
  }
}

void Walk::gate_up(const Thread& t, const Op& op, int item, const PackedRows& in,
                   const PackedRows& out) const {
  const Linear& linear = op.first;
  const int units = linear.units();
  const int chunk = item / units, unit = item % units;
  PanelGemm args{};
  args.acts = in;
  args.first_block = chunk * kBlocksPerChunk;
  args.last_block = std::min(t.blocks, args.first_block + kBlocksPerChunk);
  args.slice_ends = linear.slice_ends.data();
  args.num_slices = int(linear.slice_ends.size());
  args.out_stride = kPanel;
  const int begin = args.first_block * t.lanes;
  const int end = std::min(t.rows, args.last_block * t.lanes);
  float* gate = model_.thread_scratch_[size_t(t.index)].gate_up.data();
  float* up = gate + kBlocksPerChunk * 4 * kPanel;
  args.out = gate - size_t(begin) * kPanel;
  run_panel(t, linear, size_t(unit) * 2, args);
  args.out = up - size_t(begin) * kPanel;
  run_panel(t, linear, size_t(unit) * 2 + 1, args);
  for (int row = begin; row < end; ++row) {
    for (int n = linear.panels[size_t(unit) * 2].columns; n < kPanel; ++n) {
      gate[(row - begin) * kPanel + n] = up[(row - begin) * kPanel + n] = 0.0f;
    }
  }
  kernels_.gate_pack({gate, up, begin, end, t.rms, op.second.wide}, out, unit);
}

void Walk::norm_mlp(Thread& t, const Op& op) {
  const PackedRows in = pack_norm(t, op);
  const PackedRows out = model_.mlp_rows_.view(op.second, t.lanes);
  const int chunks = (t.blocks + kBlocksPerChunk - 1) / kBlocksPerChunk;
  phase(t, op.first.units() * chunks, [&](int item) { gate_up(t, op, item, in, out); });
  multiply(t, op.second, out, model_.x_.data(), size_t(model_.hidden_stride_), true);
}

void Walk::head(Thread& t, const Op& op) {
  if (t.rows != int(sampled_.size())) {  // a program without attention
    if (t.index == 0) gather_sampled();
    t.set_rows(int(sampled_.size()));
    model_.pool_->barrier();
  }
  if (t.rows == 0) return;
  multiply(t, op.first, pack_norm(t, op), model_.logits_.data(), size_t(model_.options_.vocab),
           false);
  charge(t, op);
  phase(t, step_.num_samples, [&](int s) {
    sample(s, t.index);
    if (step_.hidden) read_hidden(s, op);
  });
  charge(t, Stage::sample, 0, 0);
}

void Walk::sample(int s, int thread) const {
  const size_t vocab = size_t(model_.options_.vocab);
  const float* logits = model_.logits_.data() + size_t(logits_row_[size_t(s)]) * vocab;
  sample_row(logits, int(vocab), step_.samples[size_t(s)],
             model_.thread_scratch_[size_t(thread)].sampler, &step_.results[size_t(s)]);
  if (step_.logits) {
    std::memcpy(step_.logits + size_t(s) * vocab, logits, vocab * sizeof(float));
  }
}

// The normalised row that the head reads, before it is packed: a function of the row alone.
void Walk::read_hidden(int s, const Op& op) const {
  const int size = model_.options_.hidden;
  const float* row = x(logits_row_[size_t(s)]);
  double squares = 0.0;
  for (int i = 0; i < size; ++i) squares += double(row[i]) * double(row[i]);
  const double scale = 1.0 / std::sqrt(squares / size + double(op.eps));
  float* out = step_.hidden + size_t(s) * size_t(size);
  for (int i = 0; i < size; ++i) out[i] = float(double(row[i]) * scale) * op.norm[size_t(i)];
}

void Model::step(StepArrays& arrays) {
  check(arrays);
  Walk(*this, arrays).run();
}

}  // namespace octavo
