// From an octavo.backends.program.StepBatch to the arrays of one step.
#pragma once

#include <utility>

#include "arrays.hpp"
#include "model.hpp"

namespace octavo {

// An attribute that holds an array. Steps that follow one another mostly hold the same objects, so
// an array is taken apart when another object stands in its place; until then it is kept alive.
template <class T, size_t Dims>
class Field {
 public:
  explicit Field(const char* name)
      : name_(name), key_(nb::steal<nb::str>(PyUnicode_InternFromString(name))) {}

  void take(nb::handle owner) {
    nb::object value = owner.attr(key_);
    if (value.is(held_)) return;
    array_ = array_of<const T, Dims>(value, name_);
    held_ = std::move(value);
  }
  const T* data() const { return array_.data(); }
  size_t size() const { return array_.size(); }
  size_t shape(size_t axis) const { return array_.shape(axis); }
  const char* name() const { return name_; }

 private:
  const char* name_;
  nb::str key_;
  nb::object held_;
  Array<const T, Dims> array_;
};

// Token ids, in rows of differing lengths, and where each row's begin and end.
struct CsrField {
  CsrField(const char* starts, const char* values) : start(starts), value(values) {}

  void take(nb::handle owner, size_t rows);
  // Offsets and ids lie within their bounds; to be asked at every step, since values may change.
  void check(int vocab) const;
  const int32_t* begin(size_t row) const { return value.data() + start.data()[row]; }
  int size(size_t row) const { return start.data()[row + 1] - start.data()[row]; }

  Field<int32_t, 1> start;
  Field<int32_t, 1> value;
};

// Owned by a model: what the last batch held.
class StepBinding {
 public:
  // The step of `batch`, without outputs; good until the next call. Throws TypeError or ValueError
  // where an array does not fit, before any of it is read beyond its end.
  StepArrays& take(nb::handle batch, int vocab);

 private:
  template <size_t Dims>
  using IntField = Field<int32_t, Dims>;

  void take_tables(nb::handle batch);
  void take_samples(nb::object samples, int vocab);
  void bind_samples(nb::handle samples);
  void fill_row(size_t i, int vocab);

  StepArrays step_;
  IntField<1> token_ids_{"token_ids"};
  IntField<1> query_start_{"query_start_loc"};
  IntField<1> context_lens_{"context_lens"};
  IntField<1> slots_{"slots"};
  IntField<2> copies_{"copies"};
  nb::object table_objects_, first_objects_, samples_;
  std::vector<Array<const int32_t, 2>> tables_;
  std::vector<Ints> firsts_;

  IntField<1> token_index_{"token_index"};
  Field<uint64_t, 1> seed_{"seed"};
  IntField<1> branch_{"branch"};
  IntField<1> position_{"position"};
  Field<float, 1> temperature_{"temperature"};
  IntField<1> top_k_{"top_k"};
  Field<float, 1> top_p_{"top_p"};
  Field<float, 1> min_p_{"min_p"};
  Field<float, 1> repetition_{"repetition_penalty"};
  Field<float, 1> presence_{"presence_penalty"};
  Field<float, 1> frequency_{"frequency_penalty"};
  IntField<1> num_logprobs_{"num_logprobs"};
  IntField<1> num_prompt_{"num_prompt"};
  IntField<1> mask_index_{"mask_index"};
  IntField<1> forced_{"forced"};
  Field<uint32_t, 2> masks_{"masks"};
  CsrField history_{"history_start", "history"};
  CsrField bias_{"bias_start", "bias_ids"};
  CsrField banned_{"banned_start", "banned_ids"};
  Field<float, 1> bias_values_{"bias_values"};
};

}  // namespace octavo
