// The sampler: one row of logits in, one token out.
//
// The definition is octavo/sampling/sampler.py; this is the fast twin and gives the same bits.
// A row's answer is a function of its logits and its own parameters only, never of the batch,
// the thread or the instruction set.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo {

// What `token` holds when every token is banned, masked or has a non-finite logit.
constexpr std::int32_t kNoToken = -1;

// Parameters of one sample. Pointers are borrowed for the call; null with a count of 0.
// All token ids are in [0, vocab): the caller has checked them.
struct SampleRow {
  std::uint64_t seed = 0;
  std::int32_t branch = 0;
  std::int32_t position = 0;  // index in the sequence of the token being sampled
  float temperature = 1.0F;   // below the smallest normal float: greedy
  std::int32_t top_k = 0;     // <= 0: off
  float top_p = 1.0F;         // >= 1: off
  float min_p = 0.0F;         // <= 0: off
  float repetition_penalty = 1.0F;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  std::int32_t num_logprobs = -1;  // -1: none; k: the chosen token's and the top k
  std::int32_t num_prompt = 0;     // the first num_prompt ids of history are prompt
  const std::int32_t* history = nullptr;
  std::int32_t num_history = 0;
  const std::int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  std::int32_t num_bias = 0;
  const std::int32_t* banned_ids = nullptr;
  std::int32_t num_banned = 0;
  const std::uint32_t* mask = nullptr;  // ceil(vocab / 32) words, bit set = allowed; or null
  std::int32_t forced = -1;  // a token that is taken without a choice; -1: none
};

// `top_ids` and `top_logprobs` are given by the caller, with room for num_logprobs entries each
// (null when num_logprobs <= 0); missing entries are written as kNoToken and -inf.
// `logprob` is of the raw logits; 0 when num_logprobs is -1, -inf for kNoToken.
struct SampleResult {
  std::int32_t token = kNoToken;
  float logprob = 0.0F;
  std::int32_t* top_ids = nullptr;
  float* top_logprobs = nullptr;
};

// Working memory, one per thread; grows to the vocabulary once and is reused.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<float> weights;
  std::vector<std::uint8_t> buckets;
  std::vector<std::int32_t> counts;
  std::vector<std::uint64_t> keys;
};

// Samples one token from `logits` [vocab], which are left unchanged.
void sample_row(const float* logits, int vocab, const SampleRow& row, SamplerScratch& scratch,
                SampleResult* result);

}  // namespace octavo
