#include "step_bindings.hpp"

namespace octavo {
namespace {

template <class T>
void take_column(Field<T, 1>& column, nb::handle owner, size_t length) {
  column.take(owner);
  if (column.size() != length) {
    throw std::invalid_argument(std::string(column.name()) + " has " +
                                std::to_string(column.size()) + " entries instead of " +
                                std::to_string(length));
  }
}

// A tuple, since a list could get other arrays without becoming another object.
template <size_t Dims>
void take_arrays(std::vector<Array<const int32_t, Dims>>& arrays, nb::handle value,
                 const char* name) {
  if (!nb::isinstance<nb::tuple>(value)) {
    throw nb::type_error((std::string(name) + " must be a tuple of arrays").c_str());
  }
  arrays.clear();
  for (nb::handle each : value) arrays.push_back(array_of<const int32_t, Dims>(each, name));
}

}  // namespace

void CsrField::take(nb::handle owner, size_t rows) {
  take_column(start, owner, rows + 1);
  value.take(owner);
}

void CsrField::check(int vocab) const {
  const size_t rows = start.size() - 1;
  const int32_t* at = start.data();
  require(at[0] == 0 && at[rows] >= 0 && size_t(at[rows]) <= value.size(),
          "CSR offsets out of range");
  for (size_t i = 0; i < rows; ++i) require(at[i] <= at[i + 1], "CSR offsets descend");
  for (size_t i = 0; i < value.size(); ++i) {
    require(value.data()[i] >= 0 && value.data()[i] < vocab, "token id outside the vocabulary");
  }
}

StepArrays& StepBinding::take(nb::handle batch, int vocab) {
  token_ids_.take(batch);
  context_lens_.take(batch);
  const size_t rows = context_lens_.size();
  take_column(query_start_, batch, rows + 1);
  take_column(slots_, batch, rows);
  copies_.take(batch);
  require(copies_.shape(0) == 0 || copies_.shape(1) == 4, "copies must be [C, 4]");
  step_.num_rows = int(rows);
  step_.num_tokens = int(token_ids_.size());
  step_.token_ids = token_ids_.data();
  step_.query_start = query_start_.data();
  step_.context_lens = context_lens_.data();
  step_.slots = slots_.data();
  step_.copies = copies_.data();
  step_.num_copies = int(copies_.shape(0));
  step_.logits = nullptr;
  step_.hidden = nullptr;
  take_tables(batch);
  take_samples(batch.attr("sample"), vocab);
  return step_;
}

void StepBinding::take_tables(nb::handle batch) {
  nb::object tables = batch.attr("block_tables");
  nb::object firsts = batch.attr("first_position");
  if (!tables.is(table_objects_) || !firsts.is(first_objects_)) {
    table_objects_ = nb::object();
    take_arrays<2>(tables_, tables, "block_tables");
    take_arrays<1>(firsts_, firsts, "first_position");
    table_objects_ = std::move(tables);
    first_objects_ = std::move(firsts);
  }
  require(tables_.size() == firsts_.size(), "one first_position per block table");
  step_.tables.clear();
  for (size_t g = 0; g < tables_.size(); ++g) {
    require(firsts_[g].size() == context_lens_.size(),
            "first_position must have one entry per row");
    const Array<const int32_t, 2>& table = tables_[g];
    step_.tables.push_back(
        {table.data(), int(table.shape(0)), int(table.shape(1)), firsts_[g].data()});
  }
}

void StepBinding::take_samples(nb::object samples, int vocab) {
  if (!samples.is(samples_)) {
    samples_ = nb::object();
    bind_samples(samples);
    samples_ = std::move(samples);
  }
  step_.samples.assign(size_t(step_.num_samples), SampleRow());
  step_.results.assign(size_t(step_.num_samples), SampleResult());
  for (CsrField* rows : {&history_, &bias_, &banned_}) rows->check(vocab);
  for (size_t i = 0; i < step_.samples.size(); ++i) fill_row(i, vocab);
}

void StepBinding::bind_samples(nb::handle samples) {
  token_index_.take(samples);
  const size_t n = token_index_.size();
  step_.num_samples = int(n);
  step_.token_index = token_index_.data();
  masks_.take(samples);
  for (CsrField* rows : {&history_, &bias_, &banned_}) {
    rows->take(samples, n);
  }
  take_column(bias_values_, samples, bias_.value.size());
  take_column(seed_, samples, n);
  for (Field<int32_t, 1>* column : {&branch_, &position_, &top_k_, &num_logprobs_, &num_prompt_,
                                    &mask_index_, &forced_}) {
    take_column(*column, samples, n);
  }
  for (Field<float, 1>* column :
       {&temperature_, &top_p_, &min_p_, &repetition_, &presence_, &frequency_}) {
    take_column(*column, samples, n);
  }
}

void StepBinding::fill_row(size_t i, int vocab) {
  SampleRow& row = step_.samples[i];
  row.seed = seed_.data()[i];
  row.branch = branch_.data()[i];
  row.position = position_.data()[i];
  row.temperature = temperature_.data()[i];
  row.top_k = top_k_.data()[i];
  row.top_p = top_p_.data()[i];
  row.min_p = min_p_.data()[i];
  row.repetition_penalty = repetition_.data()[i];
  row.presence_penalty = presence_.data()[i];
  row.frequency_penalty = frequency_.data()[i];
  row.num_logprobs = num_logprobs_.data()[i];
  row.num_prompt = num_prompt_.data()[i];
  row.history = history_.begin(i);
  row.num_history = history_.size(i);
  row.bias_ids = bias_.begin(i);
  row.bias_values = bias_values_.data() + bias_.start.data()[i];
  row.num_bias = bias_.size(i);
  row.banned_ids = banned_.begin(i);
  row.num_banned = banned_.size(i);
  row.forced = forced_.data()[i];
  require(row.forced < vocab, "token id outside the vocabulary");
  const int32_t line = mask_index_.data()[i];
  if (line >= 0) {
    const size_t words = size_t(vocab + 31) / 32;
    require(size_t(line) < masks_.shape(0) && masks_.shape(1) == words, "mask index");
    row.mask = masks_.data() + size_t(line) * words;
  }
}

}  // namespace octavo
