// A loaded model: packed weights, the KV pool, scratch memory, and the walk over its ops.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "kv.hpp"
#include "pack.hpp"
#include "pool.hpp"
#include "sampler.hpp"

namespace octavo {

struct ModelOptions {
  int hidden = 0;
  int vocab = 0;
  int k_slices = 1;
  int threads = 1;
  int max_tokens = 512;
  bool int8_activations = true;
  const Kernels* kernels = nullptr;
  KvLayout kv;
};

inline constexpr int kRowsPerChunk = 128;  // activations that stay in the second-level cache
inline constexpr int kMaxHeadRatio = 64;  // query heads per KV head

struct AttentionSpec {
  int layer = 0;
  int group = 0;
  int heads = 1;
  int kv_heads = 1;
  int head_dim = 64;
  float scale = 1.0f;
  int window = 0;
  bool interleaved = false;
  std::vector<float> inv_freq;
};

// One step, struct of arrays; borrowed for the call. See octavo/backends/program.py.
struct StepArrays {
  int num_rows = 0;
  int num_tokens = 0;
  const int32_t* token_ids = nullptr;
  const int32_t* query_start = nullptr;
  const int32_t* context_lens = nullptr;
  const int32_t* slots = nullptr;
  struct Table {
    const int32_t* blocks = nullptr;
    int slots = 0;
    int width = 0;
    const int32_t* first_position = nullptr;
  };
  std::vector<Table> tables;
  const int32_t* copies = nullptr;
  int num_copies = 0;

  int num_samples = 0;
  const int32_t* token_index = nullptr;
  std::vector<SampleRow> samples;
  std::vector<SampleResult> results;
  float* logits = nullptr;  // [num_samples][vocab], or null
  float* hidden = nullptr;  // [num_samples][hidden], or null
};

// What a step consists of, for profiles, in the order in which it runs.
enum class Stage { copy, embed, norm_linear, attention, linear_residual, norm_mlp, head, sample };
inline constexpr const char* kStageNames[] = {
    "copy", "embed", "norm_linear", "attention", "linear_residual", "norm_mlp", "head", "sample"};
inline constexpr int kNumStages = 8;

struct Cost {
  int64_t calls = 0;
  double seconds = 0.0;
  int64_t read_bytes = 0;  // weights and KV, each once per step
  int64_t operations = 0;
};

class Model {
 public:
  explicit Model(const ModelOptions& options);

  // Building, in program order; all tensors must stay alive until finish(), the embedding for good.
  void set_embedding(const RawTensor& table, float scale);
  void add_norm_linear(std::vector<float> norm, float eps, const std::vector<RawTensor>& weights,
                       const std::vector<std::vector<float>>& biases);
  void add_attention(const AttentionSpec& spec);
  void add_linear_residual(const RawTensor& weight, const std::vector<float>& bias);
  void add_norm_mlp(std::vector<float> norm, float eps, const RawTensor& gate,
                    const RawTensor& up, const RawTensor& down);
  void set_head(std::vector<float> norm, float eps, const RawTensor& weight);
  // Packs the weights and allocates pool and scratch. Throws std::invalid_argument where an op
  // does not fit the others or the pool.
  void finish();

  // Throws std::invalid_argument before anything is computed; afterwards never.
  void step(StepArrays& step);

  // Forgets earlier costs and measures every step from now on.
  void start_profile();
  // Per stage; not while a step runs.
  const std::array<Cost, kNumStages>& costs() const { return costs_; }

  KvPool& kv() { return kv_; }
  ThreadPool& pool() { return *pool_; }
  uint64_t progress() const { return progress_.load(); }
  int vocab() const { return options_.vocab; }
  int hidden() const { return options_.hidden; }
  size_t weight_bytes() const { return weights_.bytes(); }
  size_t huge_weight_bytes() const { return weights_.huge_bytes(); }

 private:
  friend class Walk;

  struct Panel {
    const uint8_t* data = nullptr;
    int tensor = 0;  // index into Linear::tensors
    int row = 0;     // first row of the tensor
    Format format = Format::f32;
    int column = 0;  // first output column
    int columns = 0;
    const float* bias = nullptr;
  };
  struct Linear {
    std::vector<RawTensor> tensors;
    std::vector<Panel> panels;
    int groups = 0;
    int outputs = 0;
    int panels_per_unit = 1;  // 2: gate and up of the same columns
    std::vector<int> slice_ends;
    std::vector<float> bias;  // 32 per panel, or empty
    bool ints = false;        // the activations it reads
    bool floats = false;
    // Groups of its input above wide · rms have 15 bits: rms of the normalised row, or, before a
    // sum into the residual, of the residual row.
    float wide = __builtin_inff();

    size_t bytes() const;
    int units() const { return int(panels.size()) / panels_per_unit; }
  };
  struct Op {
    Stage kind;
    std::vector<float> norm;  // padded to whole groups
    float eps = 0.0f;
    Linear first;   // qkv, o, gate and up, head
    Linear second;  // down
    AttentionSpec attention;
    int rope = 0;
  };
  // Memory for packed rows of one width; lanes are chosen per step.
  struct RowBuffer {
    std::vector<uint8_t> ints;
    std::vector<float> floats;

    PackedRows view(const Linear& reader, int lanes);
  };

  Linear make_linear(const std::vector<RawTensor>& tensors, bool row_parallel) const;
  void append_panels(Linear& linear, int tensor, int column) const;
  void check_attention(const AttentionSpec& spec) const;
  void check_program() const;
  void place_and_pack();
  void allocate_scratch();
  void check(const StepArrays& step) const;

  ModelOptions options_;
  std::unique_ptr<ThreadPool> pool_;
  RawTensor embedding_;
  float embedding_scale_ = 1.0f;
  std::vector<Op> ops_;
  std::vector<std::vector<float>> ropes_;  // distinct inv_freq
  int last_attention_ = -1;
  Mapping weights_;
  KvPool kv_;
  std::atomic<uint64_t> progress_{0};

  // Scratch of a step.
  int hidden_stride_ = 0;
  int qkv_stride_ = 0;
  std::vector<float> x_, qkv_, logits_, cos_sin_;
  std::vector<float> partials_;  // of segments that several rows share
  std::vector<float> attended_;  // only if heads are not whole groups
  RowBuffer norm_rows_, attention_rows_, mlp_rows_;
  std::vector<float> row_rms_;   // of the residual, when last normalised
  struct ThreadScratch {
    RowBuffer norm_row;            // one row, for steps of one token
    float row_rms = 0.0f;
    std::vector<float> attention;  // kernel scratch and outputs
    std::vector<float> gate_up;
    std::vector<float> unpacked;
    SamplerScratch sampler;
  };
  std::vector<ThreadScratch> thread_scratch_;
  std::unique_ptr<WorkQueue> queue_;
  uint16_t phase_tag_ = 0;
  bool profiling_ = false;
  std::array<Cost, kNumStages> costs_;
};

}  // namespace octavo
