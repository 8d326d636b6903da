#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "require.hpp"

namespace octavo {
namespace {

int groups_of(int columns) { return (columns + kGroup - 1) / kGroup; }

std::vector<float> padded(std::vector<float> values) {
  values.resize(size_t(groups_of(int(values.size()))) * kGroup, 0.0f);
  return values;
}

// Which groups of activations have 15 bits instead of 8: those with a value above so many times the
// root mean square of their normalised row, or, before a sum into the residual, those whose largest
// value times the weights' root mean square is above this share of the residual's: outliers make a
// group's scale coarse. With 8 bits everywhere 4.4 % of SmolLM2's greedy tokens differ from the
// float path's, with these limits 2.2 %, with 15 bits everywhere 0.2 %.
constexpr float kQkvOutlier = 5.0f;
constexpr float kGateOutlier = 4.5f;
constexpr float kAttentionShare = 0.07f;
constexpr float kDownShare = 0.035f;

// Root mean square of a sample of a matrix.
float weight_rms(const RawTensor& t) {
  std::vector<float> row(size_t(t.columns));
  const int samples = std::min(t.rows, 64);
  double squares = 0.0;
  for (int i = 0; i < samples; ++i) {
    dequantize_row(t, int(int64_t(t.rows) * i / samples), row.data());
    for (float w : row) squares += double(w) * double(w);
  }
  return float(std::sqrt(squares / (double(samples) * t.columns)));
}

void require_bias(const std::vector<float>& bias, const RawTensor& weight) {
  require(bias.empty() || bias.size() == size_t(weight.rows), "a bias has a value per row");
}

}  // namespace

Model::Model(const ModelOptions& options)
    : options_(options), pool_(std::make_unique<ThreadPool>(options.threads)) {}

void Model::append_panels(Linear& linear, int tensor, int column) const {
  const RawTensor& raw = linear.tensors[size_t(tensor)];
  for (int row = 0; row < raw.rows; row += kPanel) {
    Panel panel;
    panel.tensor = tensor;
    panel.row = row;
    panel.format = format_of(raw.type);
    panel.column = column + row;
    panel.columns = std::min(kPanel, raw.rows - row);
    linear.panels.push_back(panel);
  }
}

Model::Linear Model::make_linear(const std::vector<RawTensor>& tensors, bool row_parallel) const {
  require(!tensors.empty(), "no weights");
  Linear linear;
  linear.tensors = tensors;
  linear.groups = groups_of(tensors[0].columns);
  for (size_t i = 0; i < tensors.size(); ++i) {
    append_panels(linear, int(i), linear.outputs);
    linear.outputs += tensors[i].rows;
    const bool quantised = int(format_of(tensors[i].type)) < kNumIntFormats;
    (quantised && options_.int8_activations ? linear.ints : linear.floats) = true;
  }
  const int slices = row_parallel ? std::min(options_.k_slices, linear.groups) : 1;
  for (int v = 1; v <= slices; ++v) linear.slice_ends.push_back(linear.groups * v / slices);
  return linear;
}

void Model::set_embedding(const RawTensor& table, float scale) {
  embedding_ = table;
  embedding_scale_ = scale;
}

void Model::add_norm_linear(std::vector<float> norm, float eps,
                            const std::vector<RawTensor>& weights,
                            const std::vector<std::vector<float>>& biases) {
  require(biases.size() == weights.size(), "one bias per weight, empty where there is none");
  for (size_t i = 0; i < biases.size(); ++i) require_bias(biases[i], weights[i]);
  Op op{Stage::norm_linear, padded(std::move(norm)), eps, make_linear(weights, false), {}, {}, 0};
  op.first.wide = kQkvOutlier;
  const bool any = std::any_of(biases.begin(), biases.end(), [](auto& b) { return !b.empty(); });
  if (any) {
    op.first.bias.assign(op.first.panels.size() * kPanel, 0.0f);
    for (size_t i = 0; i < op.first.panels.size(); ++i) {
      const Panel& panel = op.first.panels[i];
      const std::vector<float>& bias = biases[size_t(panel.tensor)];
      if (bias.empty()) continue;
      std::copy_n(bias.data() + panel.row, panel.columns, op.first.bias.data() + i * kPanel);
    }
  }
  ops_.push_back(std::move(op));
}

void Model::add_attention(const AttentionSpec& spec) {
  Op op{Stage::attention, {}, 0.0f, {}, {}, spec, 0};
  auto found = std::find(ropes_.begin(), ropes_.end(), spec.inv_freq);
  op.rope = int(found - ropes_.begin());
  if (found == ropes_.end()) ropes_.push_back(spec.inv_freq);
  last_attention_ = int(ops_.size());
  ops_.push_back(std::move(op));
}

void Model::add_linear_residual(const RawTensor& weight, const std::vector<float>& bias) {
  require_bias(bias, weight);
  Op op{Stage::linear_residual, {}, 0.0f, make_linear({weight}, true), {}, {}, 0};
  op.first.wide = kAttentionShare / weight_rms(weight);
  if (!bias.empty()) op.first.bias = padded(bias);
  ops_.push_back(std::move(op));
}

void Model::add_norm_mlp(std::vector<float> norm, float eps, const RawTensor& gate,
                         const RawTensor& up, const RawTensor& down) {
  Op op{Stage::norm_mlp, padded(std::move(norm)), eps, make_linear({gate, up}, false),
        make_linear({down}, true), {}, 0};
  op.first.wide = kGateOutlier;
  op.second.wide = kDownShare / weight_rms(down);
  Linear& pair = op.first;
  const size_t half = pair.panels.size() / 2;
  std::vector<Panel> mixed;
  for (size_t i = 0; i < half; ++i) {
    mixed.push_back(pair.panels[i]);
    mixed.push_back(pair.panels[half + i]);
  }
  pair.panels = std::move(mixed);
  pair.panels_per_unit = 2;
  ops_.push_back(std::move(op));
}

void Model::set_head(std::vector<float> norm, float eps, const RawTensor& weight) {
  ops_.push_back({Stage::head, padded(std::move(norm)), eps, make_linear({weight}, false), {}, {},
                  0});
}

// Each thread's panels of all ops lie in one run, in the order in which the walk reads them.
void Model::place_and_pack() {
  struct Job {
    Linear* linear;
    Panel* panel;
    size_t offset;
  };
  std::vector<Job> jobs;
  size_t total = 0;
  const int threads = options_.threads;
  for (int t = 0; t < threads; ++t) {
    for (Op& op : ops_) {
      for (Linear* linear : {&op.first, &op.second}) {
        const int per_unit = linear->panels_per_unit;
        const int begin = share_begin(linear->units(), threads, t) * per_unit;
        const int end = share_begin(linear->units(), threads, t + 1) * per_unit;
        for (int i = begin; i < end; ++i) {
          Panel& panel = linear->panels[size_t(i)];
          jobs.push_back({linear, &panel, total});
          total += panel_bytes(panel.format, linear->groups);
          if (!linear->bias.empty()) panel.bias = linear->bias.data() + size_t(i) * kPanel;
        }
      }
    }
  }
  weights_ = Mapping(total + 4096, true);  // the slack lets kernels prefetch past the end
  struct Context {
    std::vector<Job>& jobs;
    uint8_t* base;
    std::atomic<size_t> next{0};
  } context{jobs, weights_.data(), {}};
  const auto pack = [](void* opaque, int) {
    Context& c = *static_cast<Context*>(opaque);
    for (size_t i = c.next.fetch_add(1); i < c.jobs.size(); i = c.next.fetch_add(1)) {
      const Job& job = c.jobs[i];
      job.panel->data = c.base + job.offset;
      pack_panel(job.linear->tensors[size_t(job.panel->tensor)], job.panel->row,
                 c.base + job.offset);
    }
  };
  pool_->run(pack, &context);
  for (Op& op : ops_) {
    op.first.tensors.clear();
    op.second.tensors.clear();
  }
}

// The forms that `reader` does not read are not written.
PackedRows Model::RowBuffer::view(const Linear& reader, int lanes) {
  return {reader.ints ? ints.data() : nullptr, reader.floats ? floats.data() : nullptr,
          reader.groups, lanes};
}

void Model::allocate_scratch() {
  const size_t rows = size_t(options_.max_tokens + 3) / 4 * 4;
  const auto grow = [](RowBuffer& buffer, const Linear& linear, size_t count) {
    const size_t groups = count * size_t(linear.groups);
    if (linear.ints) buffer.ints.resize(std::max(buffer.ints.size(), groups * 96));
    if (linear.floats) buffer.floats.resize(std::max(buffer.floats.size(), groups * kGroup));
  };
  thread_scratch_.resize(size_t(options_.threads));
  hidden_stride_ = groups_of(options_.hidden) * kGroup;
  int max_groups = 0, max_outputs = 0, max_dim = 16;
  for (const Op& op : ops_) {
    max_groups = std::max({max_groups, op.first.groups, op.second.groups});
    if (op.kind == Stage::norm_linear) max_outputs = std::max(max_outputs, op.first.outputs);
    if (op.kind == Stage::attention) max_dim = std::max(max_dim, op.attention.head_dim);
    if (op.kind == Stage::linear_residual) {
      grow(attention_rows_, op.first, rows);
      if (options_.kv.head_dim % kGroup != 0) {
        attended_.assign(rows * size_t(op.first.groups) * kGroup, 0.0f);
      }
    }
    if (op.kind == Stage::norm_mlp) grow(mlp_rows_, op.second, rows);
    if (!op.norm.empty()) {
      grow(norm_rows_, op.first, rows);
      for (ThreadScratch& scratch : thread_scratch_) grow(scratch.norm_row, op.first, 1);
    }
  }
  qkv_stride_ = (max_outputs + 15) / 16 * 16;
  row_rms_.assign(rows, 0.0f);
  x_.assign(rows * size_t(hidden_stride_), 0.0f);
  qkv_.assign(rows * size_t(qkv_stride_), 0.0f);
  size_t rope_width = 0;
  for (const auto& rope : ropes_) rope_width += 2 * rope.size();
  cos_sin_.assign(rows * rope_width, 0.0f);
  for (ThreadScratch& scratch : thread_scratch_) {
    scratch.attention.resize(size_t(4 * (kSegment + max_dim) + kMaxHeadRatio * max_dim));
    scratch.gate_up.resize(2 * kRowsPerChunk * kPanel);
    scratch.unpacked.resize(
        std::max(size_t(max_groups) * kGroup * kPanel, size_t(2 * kRowsPerChunk * kPanel)));
  }
  queue_ = std::make_unique<WorkQueue>(options_.threads);
}

void Model::check_attention(const AttentionSpec& spec) const {
  const KvLayout& kv = options_.kv;
  require(spec.kv_heads == kv.num_kv_heads && spec.head_dim == kv.head_dim,
          "attention has other KV heads than the pool");
  require(spec.group >= 0 && spec.group < int(kv.group_layers.size()) && spec.layer >= 0 &&
              spec.layer < kv.group_layers[size_t(spec.group)],
          "the pool has no such layer");
  require(spec.heads > 0 && spec.heads % spec.kv_heads == 0 &&
              spec.heads / spec.kv_heads <= kMaxHeadRatio,
          "query heads must be a multiple of KV heads, at most 64 times as many");
  require(2 * spec.inv_freq.size() <= size_t(spec.head_dim), "more frequencies than pairs");
}

// Shapes against one another: the walk goes by them without asking.
void Model::check_program() const {
  const int hidden = options_.hidden;
  require(embedding_.columns == hidden, "the embedding is not as wide as the hidden state");
  AttentionSpec attention;  // the last one
  int outputs = 0;          // of the op before
  for (const Op& op : ops_) {
    const std::vector<RawTensor>& tensors = op.first.tensors;
    for (const RawTensor& tensor : tensors) {
      require(tensor.columns == tensors[0].columns, "weights of one input differ in columns");
    }
    require(op.norm.empty() ||
                (op.norm.size() == size_t(groups_of(hidden)) * kGroup &&
                 tensors[0].columns == hidden),
            "a norm or its weights are not as wide as the hidden state");
    switch (op.kind) {
      case Stage::attention:
        attention = op.attention;
        check_attention(attention);
        require(outputs == (attention.heads + 2 * attention.kv_heads) * attention.head_dim,
                "an attention op must follow the projection of its q, k and v");
        break;
      case Stage::linear_residual:
        require(tensors[0].columns == attention.heads * attention.head_dim &&
                    tensors[0].rows == hidden,
                "an output projection fits neither its attention nor the hidden state");
        break;
      case Stage::norm_mlp: {
        const RawTensor& down = op.second.tensors[0];
        require(tensors[1].rows == tensors[0].rows && down.columns == tensors[0].rows &&
                    down.rows == hidden,
                "gate, up and down do not fit one another");
        break;
      }
      case Stage::head:
        require(tensors[0].rows == options_.vocab, "the head must have a row per token");
        break;
      default: break;
    }
    outputs = op.first.outputs;
  }
}

void Model::finish() {
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].kind != Stage::attention) continue;
    require(i + 1 < ops_.size() && ops_[i + 1].kind == Stage::linear_residual,
            "an attention op must be followed by its output projection");
  }
  check_program();
  place_and_pack();
  kv_ = KvPool(options_.kv);
  allocate_scratch();
}

size_t Model::Linear::bytes() const {
  size_t total = 0;
  for (const Panel& panel : panels) total += panel_bytes(panel.format, groups);
  return total;
}

void Model::start_profile() {
  costs_ = {};
  profiling_ = true;
}

void Model::check(const StepArrays& step) const {
  require(pool_->alive(), "the model belongs to another process; load it again after fork()");
  require(step.num_tokens <= options_.max_tokens, "more tokens than max_tokens");
  require(step.tables.size() == options_.kv.group_layers.size(), "one block table per KV group");
  for (int i = 0; i < step.num_tokens; ++i) {
    require(step.token_ids[i] >= 0 && step.token_ids[i] < embedding_.rows, "token id out of range");
  }
  require(step.query_start[0] == 0 && step.query_start[step.num_rows] == step.num_tokens,
          "query_start_loc does not cover the tokens");
  for (int r = 0; r < step.num_rows; ++r) {
    require(step.query_start[r] < step.query_start[r + 1] && step.context_lens[r] >= 0,
            "empty row or negative context");
    // Wide, because nothing bounds the context yet. No row is longer than the batch: starts ascend.
    const int64_t last =
        int64_t(step.context_lens[r]) + step.query_start[r + 1] - step.query_start[r] - 1;
    for (const StepArrays::Table& table : step.tables) {
      const int first = table.first_position[r];
      require(step.slots[r] >= 0 && step.slots[r] < table.slots, "slot out of range");
      require(first >= 0 && first % kTile == 0 && first <= step.context_lens[r],
              "first_position must be a multiple of 16 within the context");
      const int64_t entries = (last - first) / options_.kv.block_size + 1;
      require(entries <= table.width, "block table too short");
      const int32_t* line = table.blocks + size_t(step.slots[r]) * size_t(table.width);
      for (int64_t i = 0; i < entries; ++i) {
        require(line[i] >= 0 && line[i] < options_.kv.num_blocks, "block id out of range");
      }
    }
  }
  for (int c = 0; c < step.num_copies; ++c) {
    const int32_t* copy = step.copies + 4 * c;
    require(copy[0] >= 0 && copy[0] < int(options_.kv.group_layers.size()), "copy group");
    require(copy[1] >= 0 && copy[1] < options_.kv.num_blocks && copy[2] >= 0 &&
                copy[2] < options_.kv.num_blocks && copy[3] >= 0 &&
                copy[3] <= options_.kv.block_size,
            "copy out of range");
  }
  for (int s = 0; s < step.num_samples; ++s) {
    require(step.token_index[s] >= 0 && step.token_index[s] < step.num_tokens,
            "sample token_index out of range");
  }
}

}  // namespace octavo
