#include "sampler_bindings.hpp"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "sampler.hpp"

namespace octavo {
namespace {

// (token, logprob, top ids, top logprobs)
using Answer = std::tuple<int, float, std::vector<std::int32_t>, std::vector<float>>;

void check_ids(const Ints& ids, int vocab, const char* name) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids.data()[i] < 0 || ids.data()[i] >= vocab) {
      throw std::out_of_range(std::string(name) + " holds a token id outside the vocabulary");
    }
  }
}

// `row` is an octavo.sampling.SampleRow.
Answer sample_row_of(const Floats& logits, nb::handle row) {
  const int vocab = static_cast<int>(logits.size());
  const auto history = array_in<const int32_t, 1>(row, "history");
  const auto bias_ids = array_in<const int32_t, 1>(row, "bias_ids");
  const auto bias_values = array_in<const float, 1>(row, "bias_values");
  const auto banned_ids = array_in<const int32_t, 1>(row, "banned_ids");
  check_ids(history, vocab, "history");
  check_ids(bias_ids, vocab, "bias_ids");
  check_ids(banned_ids, vocab, "banned_ids");
  require(bias_ids.size() == bias_values.size(), "bias lengths differ");
  SampleRow in;
  in.seed = nb::cast<std::uint64_t>(row.attr("seed"));
  in.branch = nb::cast<std::int32_t>(row.attr("branch"));
  in.position = nb::cast<std::int32_t>(row.attr("position"));
  in.temperature = nb::cast<float>(row.attr("temperature"));
  in.top_k = nb::cast<std::int32_t>(row.attr("top_k"));
  in.top_p = nb::cast<float>(row.attr("top_p"));
  in.min_p = nb::cast<float>(row.attr("min_p"));
  in.repetition_penalty = nb::cast<float>(row.attr("repetition_penalty"));
  in.presence_penalty = nb::cast<float>(row.attr("presence_penalty"));
  in.frequency_penalty = nb::cast<float>(row.attr("frequency_penalty"));
  in.num_logprobs = nb::cast<std::int32_t>(row.attr("num_logprobs"));
  in.num_prompt = nb::cast<std::int32_t>(row.attr("num_prompt"));
  in.forced = nb::cast<std::int32_t>(row.attr("forced"));
  if (in.forced >= vocab) throw std::out_of_range("forced is a token id outside the vocabulary");
  in.history = history.data();
  in.num_history = static_cast<std::int32_t>(history.size());
  in.bias_ids = bias_ids.data();
  in.bias_values = bias_values.data();
  in.num_bias = static_cast<std::int32_t>(bias_ids.size());
  in.banned_ids = banned_ids.data();
  in.num_banned = static_cast<std::int32_t>(banned_ids.size());
  Array<const uint32_t, 1> mask;
  if (!row.attr("mask").is_none()) {
    mask = array_in<const uint32_t, 1>(row, "mask");
    require(mask.size() == (logits.size() + 31) / 32, "mask length");
    in.mask = mask.data();
  }
  const std::size_t room = in.num_logprobs > 0 ? static_cast<std::size_t>(in.num_logprobs) : 0;
  std::vector<std::int32_t> top_ids(room);
  std::vector<float> top_logprobs(room);
  SampleResult out;
  out.top_ids = top_ids.data();
  out.top_logprobs = top_logprobs.data();
  static thread_local SamplerScratch scratch;
  sample_row(logits.data(), vocab, in, scratch, &out);
  return {out.token, out.logprob, std::move(top_ids), std::move(top_logprobs)};
}

}  // namespace

void register_sampler(nb::module_& module) {
  module.def("sample_row", &sample_row_of, nb::arg("logits").noconvert(), nb::arg("row"),
             "Sample one token; the native twin of octavo.sampling.sample_row.");
}

}  // namespace octavo
