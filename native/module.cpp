// Python bindings. All checks of user input are made by octavo.backends.native; the ones here keep
// a wrong array from becoming a wrong memory access.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu.hpp"
#include "model.hpp"
#include "sampler_bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

template <class T, size_t Dims>
using Array = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Ints = Array<const int32_t, 1>;
using Floats = Array<const float, 1>;
using Bytes = Array<const uint8_t, 1>;

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

// (GGUF type number, rows, columns, bytes)
RawTensor raw_tensor(nb::handle handle) {
  const nb::tuple parts = nb::cast<nb::tuple>(handle);
  const Bytes data = nb::cast<Bytes>(parts[3]);
  RawTensor tensor;
  tensor.type = nb::cast<int>(parts[0]);
  tensor.rows = nb::cast<int>(parts[1]);
  tensor.columns = nb::cast<int>(parts[2]);
  tensor.data = data.data();
  require(known_type(tensor.type), "unknown tensor type");
  require(tensor.rows > 0 && tensor.columns > 0, "empty tensor");
  require(row_bytes(tensor.type, tensor.columns) * size_t(tensor.rows) == data.size(),
          "tensor bytes do not match its shape");
  return tensor;
}

std::vector<RawTensor> raw_tensors(const nb::list& list) {
  std::vector<RawTensor> out;
  for (nb::handle item : list) out.push_back(raw_tensor(item));
  return out;
}

std::vector<float> floats(const Floats& array) {
  return std::vector<float>(array.data(), array.data() + array.size());
}

// Element i of a per-sample array, checked to be as long as the batch.
template <class T>
const T* column(nb::handle samples, const char* name, size_t length) {
  const auto array = nb::cast<Array<const T, 1>>(samples.attr(name));
  require(array.size() == length, "sample arrays differ in length");
  return array.data();
}

// The CSR span of row i.
struct Csr {
  const int32_t* start;
  int begin(size_t i) const { return start[i]; }
  int size(size_t i) const { return start[i + 1] - start[i]; }
};

Csr csr(nb::handle samples, const char* name, size_t length, size_t values) {
  const Csr out{column<int32_t>(samples, name, length + 1)};
  require(out.start[0] == 0 && size_t(out.start[length]) <= values, "CSR offsets out of range");
  for (size_t i = 0; i < length; ++i) require(out.size(i) >= 0, "CSR offsets descend");
  return out;
}

void check_ids(const Ints& ids, int vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    require(ids.data()[i] >= 0 && ids.data()[i] < vocab, "token id outside the vocabulary");
  }
}

void fill_samples(StepArrays& step, nb::handle s, int vocab) {
  const Ints token_index = nb::cast<Ints>(s.attr("token_index"));
  const size_t n = token_index.size();
  step.num_samples = int(n);
  step.token_index = token_index.data();
  step.samples.resize(n);
  step.results.resize(n);
  if (n == 0) return;
  const Ints history = nb::cast<Ints>(s.attr("history"));
  const Ints bias_ids = nb::cast<Ints>(s.attr("bias_ids"));
  const Floats bias_values = nb::cast<Floats>(s.attr("bias_values"));
  const Ints banned_ids = nb::cast<Ints>(s.attr("banned_ids"));
  const auto masks = nb::cast<Array<const uint32_t, 2>>(s.attr("masks"));
  require(bias_ids.size() == bias_values.size(), "bias lengths differ");
  for (const Ints* ids : {&history, &bias_ids, &banned_ids}) check_ids(*ids, vocab);
  const Csr histories = csr(s, "history_start", n, history.size());
  const Csr biases = csr(s, "bias_start", n, bias_ids.size());
  const Csr bans = csr(s, "banned_start", n, banned_ids.size());
  const auto* seed = column<uint64_t>(s, "seed", n);
  const auto* branch = column<int32_t>(s, "branch", n);
  const auto* position = column<int32_t>(s, "position", n);
  const auto* temperature = column<float>(s, "temperature", n);
  const auto* top_k = column<int32_t>(s, "top_k", n);
  const auto* top_p = column<float>(s, "top_p", n);
  const auto* min_p = column<float>(s, "min_p", n);
  const auto* repetition = column<float>(s, "repetition_penalty", n);
  const auto* presence = column<float>(s, "presence_penalty", n);
  const auto* frequency = column<float>(s, "frequency_penalty", n);
  const auto* num_logprobs = column<int32_t>(s, "num_logprobs", n);
  const auto* num_prompt = column<int32_t>(s, "num_prompt", n);
  const auto* mask_index = column<int32_t>(s, "mask_index", n);
  const auto* forced = column<int32_t>(s, "forced", n);
  for (size_t i = 0; i < n; ++i) {
    SampleRow& row = step.samples[i];
    row.seed = seed[i];
    row.branch = branch[i];
    row.position = position[i];
    row.temperature = temperature[i];
    row.top_k = top_k[i];
    row.top_p = top_p[i];
    row.min_p = min_p[i];
    row.repetition_penalty = repetition[i];
    row.presence_penalty = presence[i];
    row.frequency_penalty = frequency[i];
    row.num_logprobs = num_logprobs[i];
    row.num_prompt = num_prompt[i];
    row.history = history.data() + histories.begin(i);
    row.num_history = histories.size(i);
    row.bias_ids = bias_ids.data() + biases.begin(i);
    row.bias_values = bias_values.data() + biases.begin(i);
    row.num_bias = biases.size(i);
    row.banned_ids = banned_ids.data() + bans.begin(i);
    row.num_banned = bans.size(i);
    row.forced = forced[i];
    require(row.forced < vocab, "token id outside the vocabulary");
    if (mask_index[i] >= 0) {
      const size_t words = size_t(vocab + 31) / 32;
      require(size_t(mask_index[i]) < masks.shape(0) && masks.shape(1) == words, "mask index");
      row.mask = masks.data() + size_t(mask_index[i]) * words;
    }
  }
}

// `batch` is an octavo.backends.program.StepBatch; the outputs are arrays to be filled.
void forward(Model& model, nb::handle batch, const Array<int32_t, 1>& token_ids,
             const Array<float, 1>& logprobs, const Array<int32_t, 2>& top_ids,
             const Array<float, 2>& top_logprobs, std::optional<Array<float, 2>> logits,
             std::optional<Array<float, 2>> hidden) {
  StepArrays step;
  const Ints tokens = nb::cast<Ints>(batch.attr("token_ids"));
  const Ints context = nb::cast<Ints>(batch.attr("context_lens"));
  const Ints query_start = nb::cast<Ints>(batch.attr("query_start_loc"));
  const Ints slots = nb::cast<Ints>(batch.attr("slots"));
  const auto copies = nb::cast<Array<const int32_t, 2>>(batch.attr("copies"));
  step.num_rows = int(context.size());
  step.num_tokens = int(tokens.size());
  require(query_start.size() == context.size() + 1 && slots.size() == context.size(),
          "row arrays differ in length");
  require(copies.shape(0) == 0 || copies.shape(1) == 4, "copies must be [C, 4]");
  step.token_ids = tokens.data();
  step.query_start = query_start.data();
  step.context_lens = context.data();
  step.slots = slots.data();
  step.copies = copies.data();
  step.num_copies = int(copies.shape(0));
  const nb::tuple tables = nb::cast<nb::tuple>(batch.attr("block_tables"));
  const nb::tuple firsts = nb::cast<nb::tuple>(batch.attr("first_position"));
  require(tables.size() == firsts.size(), "one first_position per block table");
  for (size_t g = 0; g < tables.size(); ++g) {
    const auto table = nb::cast<Array<const int32_t, 2>>(tables[g]);
    const Ints first = nb::cast<Ints>(firsts[g]);
    require(first.size() == context.size(), "first_position must have one entry per row");
    step.tables.push_back(
        {table.data(), int(table.shape(0)), int(table.shape(1)), first.data()});
  }
  fill_samples(step, batch.attr("sample"), model.vocab());
  const size_t n = size_t(step.num_samples);
  require(token_ids.size() == n && logprobs.size() == n && top_ids.shape(0) == n &&
              top_logprobs.shape(0) == n && top_ids.shape(1) == top_logprobs.shape(1),
          "output arrays have the wrong shape");
  for (size_t i = 0; i < n; ++i) {
    require(step.samples[i].num_logprobs <= int(top_ids.shape(1)), "too few output columns");
    step.results[i].top_ids = top_ids.data() + i * top_ids.shape(1);
    step.results[i].top_logprobs = top_logprobs.data() + i * top_ids.shape(1);
  }
  if (logits) {
    require(logits->shape(0) == n && logits->shape(1) == size_t(model.vocab()), "logits shape");
    step.logits = logits->data();
  }
  if (hidden) {
    require(hidden->shape(0) == n && hidden->shape(1) == size_t(model.hidden()), "hidden shape");
    step.hidden = hidden->data();
  }
  {
    nb::gil_scoped_release release;
    model.step(step);
  }
  for (size_t i = 0; i < n; ++i) {
    token_ids.data()[i] = step.results[i].token;
    logprobs.data()[i] = step.results[i].logprob;
  }
}

Model* make_model(const nb::dict& o) {
  ModelOptions options;
  const auto integer = [&](const char* name) { return nb::cast<int>(o[name]); };
  options.hidden = integer("hidden");
  options.vocab = integer("vocab");
  options.k_slices = integer("k_slices");
  options.threads = integer("threads");
  options.max_tokens = integer("max_tokens");
  options.int8_activations = nb::cast<bool>(o["int8_activations"]);
  options.kernels = find_kernels(nb::cast<std::string>(o["isa"]));
  require(options.kernels != nullptr, "unsupported instruction set");
  require(options.threads >= 1 && options.threads <= kMaxThreads, "threads out of range");
  options.kv.block_size = integer("block_size");
  options.kv.num_blocks = integer("num_blocks");
  options.kv.group_layers = nb::cast<std::vector<int>>(o["group_layers"]);
  options.kv.num_kv_heads = integer("kv_heads");
  options.kv.head_dim = integer("head_dim");
  return new Model(options);
}

void add_attention(Model& model, const nb::dict& o) {
  AttentionSpec spec;
  spec.layer = nb::cast<int>(o["layer"]);
  spec.group = nb::cast<int>(o["group"]);
  spec.heads = nb::cast<int>(o["heads"]);
  spec.kv_heads = nb::cast<int>(o["kv_heads"]);
  spec.head_dim = nb::cast<int>(o["head_dim"]);
  spec.scale = nb::cast<float>(o["scale"]);
  spec.window = nb::cast<int>(o["window"]);
  spec.interleaved = nb::cast<bool>(o["interleaved"]);
  spec.inv_freq = nb::cast<std::vector<float>>(o["inv_freq"]);
  model.add_attention(spec);
}

void read_block(Model& model, int group, int layer, int block, const Array<float, 3>& k,
                const Array<float, 3>& v) {
  const KvLayout& layout = model.kv().layout();
  require(group >= 0 && group < int(layout.group_layers.size()) && layer >= 0 &&
              layer < layout.group_layers[size_t(group)] && block >= 0 &&
              block < layout.num_blocks,
          "no such block");
  const size_t size = size_t(layout.block_size) * layout.num_kv_heads * layout.head_dim;
  require(k.size() == size && v.size() == size, "block arrays have the wrong shape");
  model.kv().read(group, layer, block, k.data(), v.data());
}

void poison(Model& model, const Ints& blocks) {
  for (size_t i = 0; i < blocks.size(); ++i) {
    require(blocks.data()[i] >= 0 && blocks.data()[i] < model.kv().layout().num_blocks,
            "no such block");
    model.kv().poison(blocks.data()[i]);
  }
}

void dequantize(nb::handle tensor, const Array<float, 2>& out) {
  const RawTensor raw = raw_tensor(tensor);
  require(out.shape(0) == size_t(raw.rows) && out.shape(1) == size_t(raw.columns), "output shape");
  for (int row = 0; row < raw.rows; ++row) {
    dequantize_row(raw, row, out.data() + size_t(row) * size_t(raw.columns));
  }
}

void bind_model(nb::module_& m) {
  nb::class_<Model>(m, "Model")
      .def(nb::new_([](const nb::dict& options) { return make_model(options); }), "options"_a)
      .def("set_embedding",
           [](Model& self, nb::handle table, float scale) {
             self.set_embedding(raw_tensor(table), scale);
           })
      .def("add_norm_linear",
           [](Model& self, const Floats& norm, float eps, const nb::list& weights,
              const nb::list& biases) {
             std::vector<std::vector<float>> bias;
             for (nb::handle b : biases) bias.push_back(floats(nb::cast<Floats>(b)));
             self.add_norm_linear(floats(norm), eps, raw_tensors(weights), bias);
           })
      .def("add_attention", &add_attention)
      .def("add_linear_residual",
           [](Model& self, nb::handle weight, const Floats& bias) {
             self.add_linear_residual(raw_tensor(weight), floats(bias));
           })
      .def("add_norm_mlp",
           [](Model& self, const Floats& norm, float eps, nb::handle gate, nb::handle up,
              nb::handle down) {
             self.add_norm_mlp(floats(norm), eps, raw_tensor(gate), raw_tensor(up),
                               raw_tensor(down));
           })
      .def("set_head",
           [](Model& self, const Floats& norm, float eps, nb::handle weight) {
             self.set_head(floats(norm), eps, raw_tensor(weight));
           })
      .def("finish", &Model::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("forward", &forward, "batch"_a, "token_ids"_a, "logprobs"_a, "top_ids"_a,
           "top_logprobs"_a, "logits"_a.none(), "hidden"_a.none())
      .def("read_block", &read_block)
      .def("poison", &poison)
      .def("start_profile", &Model::start_profile)
      .def("costs",
           [](const Model& self) {
             nb::list out;
             for (int i = 0; i < kNumStages; ++i) {
               const Cost& cost = self.costs()[size_t(i)];
               out.append(nb::make_tuple(kStageNames[i], cost.calls, cost.seconds,
                                         cost.read_bytes, cost.operations));
             }
             return out;
           })
      .def_prop_ro("progress", &Model::progress)
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("huge_weight_bytes", &Model::huge_weight_bytes);
}

}  // namespace
}  // namespace octavo

NB_MODULE(_native, m) {
  using namespace octavo;
  m.attr("kernel_revision") = 4;
  bind_model(m);
  register_sampler(m);
  m.def("dequantize", &dequantize, "Exact float values of a raw tensor.");
  m.def("cpu_features", &supported_isas, "Kernel sets that this machine can run, slowest first.");
  m.def("probe_barrier_ns", &probe_barrier_ns, "threads"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("probe_read_gbs", &probe_read_gbs, "threads"_a, "num_bytes"_a = size_t(256) << 20,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("probe_int8_gops", &probe_int8_gops, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
}
