// Python bindings. All checks of user input are made by octavo.backends.native; the ones here keep
// a wrong array from becoming a wrong memory access.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "cpu.hpp"
#include "model.hpp"
#include "sampler_bindings.hpp"
#include "step_bindings.hpp"

using namespace nanobind::literals;

namespace octavo {
namespace {

// A model and what its last step was given.
struct BoundModel final : Model {
  using Model::Model;
  StepBinding binding;
  std::pair<double, double> span{0.0, 0.0};  // begin and end of the last step
};

// (GGUF type number, rows, columns, bytes)
RawTensor raw_tensor(nb::handle handle) {
  const nb::tuple parts = nb::cast<nb::tuple>(handle);
  const Bytes data = array_of<const uint8_t, 1>(parts[3], "tensor bytes");
  RawTensor tensor;
  tensor.type = nb::cast<int>(parts[0]);
  tensor.rows = nb::cast<int>(parts[1]);
  tensor.columns = nb::cast<int>(parts[2]);
  tensor.data = data.data();
  require(known_type(tensor.type), "unknown tensor type");
  require(tensor.rows > 0 && tensor.columns > 0, "empty tensor");
  require(whole_blocks(tensor.type, tensor.columns), "columns end within a block");
  require(row_bytes(tensor.type, tensor.columns) * size_t(tensor.rows) == data.size(),
          "tensor bytes do not match its shape");
  return tensor;
}

std::vector<RawTensor> raw_tensors(const nb::list& list) {
  std::vector<RawTensor> out;
  for (nb::handle item : list) out.push_back(raw_tensor(item));
  return out;
}

std::vector<float> floats(nb::handle value, const char* name) {
  const Floats array = array_of<const float, 1>(value, name);
  return std::vector<float>(array.data(), array.data() + array.size());
}

// Room for what is told of the samples besides their tokens. `output` is a StepOutput.
struct Outputs {
  explicit Outputs(nb::handle output)
      : logprobs(array_in<float, 1>(output, "logprobs")),
        top_ids(array_in<int32_t, 2>(output, "top_ids")),
        top_logprobs(array_in<float, 2>(output, "top_logprobs")) {
    if (!output.attr("logits").is_none()) logits = array_in<float, 2>(output, "logits");
    if (!output.attr("hidden").is_none()) hidden = array_in<float, 2>(output, "hidden");
  }

  // Hands the room to a step, whose arrays point to it.
  void enter(StepArrays& step, const Model& model) {
    const size_t n = size_t(step.num_samples);
    const size_t width = top_ids.shape(1);
    require(logprobs.size() == n && top_ids.shape(0) == n && top_logprobs.shape(0) == n &&
                top_logprobs.shape(1) == width,
            "output arrays have the wrong shape");
    for (size_t i = 0; i < n; ++i) {
      require(step.samples[i].num_logprobs <= int(width), "too few output columns");
      step.results[i].top_ids = top_ids.data() + i * width;
      step.results[i].top_logprobs = top_logprobs.data() + i * width;
    }
    const auto fits = [n](const Array<float, 2>& array, int columns) {
      return array.shape(0) == n && array.shape(1) == size_t(columns);
    };
    if (logits) {
      require(fits(*logits, model.vocab()), "logits shape");
      step.logits = logits->data();
    }
    if (hidden) {
      require(fits(*hidden, model.hidden()), "hidden shape");
      step.hidden = hidden->data();
    }
  }

  Array<float, 1> logprobs;
  Array<int32_t, 2> top_ids;
  Array<float, 2> top_logprobs;
  std::optional<Array<float, 2>> logits, hidden;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The tokens drawn for `batch`, an octavo.backends.program.StepBatch. `output` is None where nobody
// asks for more than them.
nb::tuple forward(BoundModel& model, nb::handle batch, nb::handle output) {
  StepArrays& step = model.binding.take(batch, model.vocab());
  std::optional<Outputs> outputs;
  if (output.is_none()) {
    for (const SampleRow& row : step.samples) {
      require(row.num_logprobs < 0, "a sample asks for logprobs and there is no room for them");
    }
  } else {
    outputs.emplace(output).enter(step, model);
  }
  {
    nb::gil_scoped_release release;
    model.span.first = seconds_now();
    model.step(step);
    model.span.second = seconds_now();
  }
  const size_t n = step.results.size();
  nb::object tokens = nb::steal(PyTuple_New(Py_ssize_t(n)));
  if (!tokens.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < n; ++i) {
    PyObject* token = PyLong_FromLong(step.results[i].token);
    if (token == nullptr) throw nb::python_error();
    PyTuple_SET_ITEM(tokens.ptr(), Py_ssize_t(i), token);
    if (outputs) outputs->logprobs.data()[i] = step.results[i].logprob;
  }
  return nb::borrow<nb::tuple>(tokens);
}

BoundModel* make_model(const nb::dict& o) {
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
  options.kv.type = nb::cast<bool>(o["int8_kv"]) ? KvType::int8 : KvType::bf16;
  options.kv.block_size = integer("block_size");
  options.kv.num_blocks = integer("num_blocks");
  options.kv.group_layers = nb::cast<std::vector<int>>(o["group_layers"]);
  options.kv.num_kv_heads = integer("kv_heads");
  options.kv.head_dim = integer("head_dim");
  return new BoundModel(options);
}

void add_attention(BoundModel& model, const nb::dict& o) {
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

void read_block(BoundModel& model, int group, int layer, int block, const Array<float, 3>& k,
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

void poison(BoundModel& model, const Ints& blocks) {
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
  nb::class_<BoundModel>(m, "Model")
      .def(nb::new_([](const nb::dict& options) { return make_model(options); }), "options"_a)
      .def("set_embedding",
           [](BoundModel& self, nb::handle table, float scale) {
             self.set_embedding(raw_tensor(table), scale);
           })
      .def("add_norm_linear",
           [](BoundModel& self, nb::handle norm, float eps, const nb::list& weights,
              const nb::list& biases) {
             std::vector<std::vector<float>> bias;
             for (nb::handle b : biases) bias.push_back(floats(b, "bias"));
             self.add_norm_linear(floats(norm, "norm"), eps, raw_tensors(weights), bias);
           })
      .def("add_attention", &add_attention)
      .def("add_linear_residual",
           [](BoundModel& self, nb::handle weight, nb::handle bias) {
             self.add_linear_residual(raw_tensor(weight), floats(bias, "bias"));
           })
      .def("add_norm_mlp",
           [](BoundModel& self, nb::handle norm, float eps, nb::handle gate, nb::handle up,
              nb::handle down) {
             self.add_norm_mlp(floats(norm, "norm"), eps, raw_tensor(gate), raw_tensor(up),
                               raw_tensor(down));
           })
      .def("set_head",
           [](BoundModel& self, nb::handle norm, float eps, nb::handle weight) {
             self.set_head(floats(norm, "norm"), eps, raw_tensor(weight));
           })
      .def(
          "finish", [](BoundModel& self) { self.finish(); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("forward", &forward, "batch"_a, "output"_a.none())
      .def("read_block", &read_block, "group"_a, "layer"_a, "block"_a, "keys"_a.noconvert(),
           "values"_a.noconvert())
      .def("poison", &poison, "blocks"_a.noconvert())
      .def("start_profile", [](BoundModel& self) { self.start_profile(); })
      .def("costs",
           [](const BoundModel& self) {
             nb::list out;
             for (int i = 0; i < kNumStages; ++i) {
               const Cost& cost = self.costs()[size_t(i)];
               out.append(nb::make_tuple(kStageNames[i], cost.calls, cost.seconds,
                                         cost.read_bytes, cost.operations));
             }
             return out;
           })
      .def_prop_ro("span", [](const BoundModel& self) { return self.span; })
      .def_prop_ro("progress", [](const BoundModel& self) { return self.progress(); })
      .def_prop_ro("weight_bytes", [](const BoundModel& self) { return self.weight_bytes(); })
      .def_prop_ro("huge_weight_bytes", [](const BoundModel& self) { return self.huge_weight_bytes(); });
}

}  // namespace
}  // namespace octavo

NB_MODULE(_native, m) {
  using namespace octavo;
  m.attr("kernel_revision") = 4;
  m.attr("max_int8_kv_head_dim") = kMaxInt8HeadDim;
  bind_model(m);
  register_sampler(m);
  m.def("dequantize", &dequantize, "tensor"_a, "out"_a.noconvert(),
        "Exact float values of a raw tensor.");
  m.def("cpu_features", &supported_isas, "Kernel sets that this machine can run, slowest first.");
  m.def("probe_barrier_ns", &probe_barrier_ns, "threads"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("probe_read_gbs", &probe_read_gbs, "threads"_a, "num_bytes"_a = size_t(256) << 20,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("probe_int8_gops", &probe_int8_gops, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
}
