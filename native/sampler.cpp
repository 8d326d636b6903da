// See sampler.hpp. Compile without fused multiply-add contraction: every rounding below is part of
// the definition in octavo/sampling.
#include "sampler.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace octavo {
namespace {

using F4 = float __attribute__((vector_size(16)));
using I4 = std::int32_t __attribute__((vector_size(16)));
using U4 = std::uint32_t __attribute__((vector_size(16)));
using L2 = std::int64_t __attribute__((vector_size(16)));
using D4 = double __attribute__((vector_size(32)));
using L4 = std::int64_t __attribute__((vector_size(32)));

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLn2High = 0.693359375F;
constexpr float kLn2Low = -2.12194440e-4F;
constexpr float kLog2E = 1.44269504F;
constexpr float kRounder = 12582912.0F;
constexpr float kExpFloor = -87.0F;
constexpr float kExp[] = {0.5F, 0.16666518151F, 0.041666205972F, 0.0083688832819F,
                          0.0013950471766F};
constexpr float kLog[] = {0.33333331346F, -0.25000822544F, 0.20001226664F, -0.16623353958F,
                          0.14201776683F, -0.131602332F,   0.12761469185F, -0.0763422996F};
constexpr std::int32_t kSqrtHalfBits = 0x3F3504F3;

// Adding 256 to a weight in [0, 1] rounds it to 2^-44; the mantissa then is its integer mass.
constexpr double kMassBase = 256.0;
constexpr double kMassScale = 17592186044416.0;

// No noise exceeds 24 ln 2. The margin covers the rounding of log and of the sums, amply.
constexpr float kLn2 = 0.69314718F;
constexpr float kMaxNoise = 24.0F * kLn2;
constexpr float kMargin = 1e-3F;

constexpr std::int32_t kSeen = std::int32_t{1} << 30;

// A host or a library may have set flush-to-zero in this thread; the definition is plain IEEE.
class FloatMode {
 public:
#if defined(__SSE2__)
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~FloatMode() { _mm_setcsr(saved_); }
#else
  FloatMode() = default;
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__SSE2__)
  unsigned saved_;
#endif
};

F4 splat(float value) { return F4{value, value, value, value}; }

F4 load(const float* source) {
  F4 value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

bool any(I4 mask) {
  const L2 halves = reinterpret_cast<L2>(mask);
  return (halves[0] | halves[1]) != 0;
}

bool is_finite(float value) { return value >= -FLT_MAX && value <= FLT_MAX; }

// exp on [-87, 0], 0 elsewhere (NaN too); exp(0) is exactly 1.
F4 exp4(F4 x) {
  const I4 valid = (x >= splat(kExpFloor)) & (x <= splat(0.0F));
  x = valid ? x : splat(0.0F);
  const F4 n = (x * kLog2E + kRounder) - kRounder;
  const F4 r = (x - n * kLn2High) - n * kLn2Low;
  F4 q = splat(kExp[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) q = q * r + kExp[i];
  const F4 value = 1.0F + (r + (r * r) * q);
  const I4 power = (__builtin_convertvector(n, I4) + 127) << 23;
  return valid ? value * reinterpret_cast<F4>(power) : splat(0.0F);
}

float exp1(float x) { return exp4(splat(x))[0]; }

// Natural logarithm of a positive normal number.
float log1(float x) {
  const std::int32_t bits = std::bit_cast<std::int32_t>(x);
  const std::int32_t exponent = (bits - kSqrtHalfBits) >> 23;
  const float f = std::bit_cast<float>(bits - (exponent << 23)) - 1.0F;
  const float e = static_cast<float>(exponent);
  const float square = f * f;
  float p = kLog[7];
  for (int i = 6; i >= 0; --i) p = p * f + kLog[i];
  float value = (f * square) * p;
  value = value + e * kLn2Low;
  value = value - 0.5F * square;
  return (f + value) + e * kLn2High;
}

std::int64_t mass1(float weight) {
  return std::bit_cast<std::int64_t>(static_cast<double>(weight) + kMassBase) -
         std::bit_cast<std::int64_t>(kMassBase);
}

void mass4(F4 weights, L4& mass) {
  const std::int64_t base = std::bit_cast<std::int64_t>(kMassBase);
  mass = reinterpret_cast<L4>(__builtin_convertvector(weights, D4) + kMassBase) - base;
}

// Integer mass of exp(logit - highest) over the row.
std::int64_t row_mass(const float* logits, int vocab, float highest) {
  L4 total = {0, 0, 0, 0};
  int i = 0;
  for (; i + 4 <= vocab; i += 4) {
    L4 mass;
    mass4(exp4(load(logits + i) - highest), mass);
    total += mass;
  }
  std::int64_t sum = total[0] + total[1] + total[2] + total[3];
  for (; i < vocab; ++i) sum += mass1(exp1(logits[i] - highest));
  return sum;
}

// Highest finite logit, lowest id among equals; kNoToken when there is none.
std::int32_t argmax(const float* logits, int vocab) {
  F4 best[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
  int i = 0;
  for (; i + 16 <= vocab; i += 16) {
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane) {
      const F4 value = load(logits + i + 4 * lane);
      best[lane] = ((value > best[lane]) & (value <= splat(FLT_MAX))) ? value : best[lane];
    }
  }
  float highest = -kInfinity;
  for (const F4& part : best) {
    for (int lane = 0; lane < 4; ++lane) highest = std::max(highest, part[lane]);
  }
  for (; i < vocab; ++i) {
    if (logits[i] > highest && logits[i] <= FLT_MAX) highest = logits[i];
  }
  if (highest == -kInfinity) return kNoToken;
  for (i = 0; i + 4 <= vocab && !any(load(logits + i) == splat(highest)); i += 4) {
  }
  while (logits[i] != highest) ++i;
  return i;
}

// Larger keys stand first: by falling logit (the two zeros are equal), then by rising id.
std::uint64_t key_of(float logit, std::int32_t id) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(logit + 0.0F);
  const std::uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<std::uint64_t>(ordered) << 32) | ~static_cast<std::uint32_t>(id);
}

std::int32_t id_of(std::uint64_t key) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(key));
}

// The `count` first finite logits in key order, unsorted (fewer where there are not as many).
void select_top(const float* logits, int vocab, int count, std::vector<std::uint64_t>& keys) {
  const std::size_t wanted = static_cast<std::size_t>(std::min(count, vocab));
  const std::size_t room = std::max<std::size_t>(4 * wanted, 1024);
  float floor = -kInfinity;
  keys.clear();
  const auto shrink = [&] {
    const auto last = keys.begin() + static_cast<std::ptrdiff_t>(wanted) - 1;
    std::nth_element(keys.begin(), last, keys.end(), std::greater<>());
    keys.resize(wanted);
    // Ids only rise from here on, so that an equal logit would stand behind.
    floor = logits[id_of(keys.back())];
  };
  const auto visit = [&](int id) {
    if (!(logits[id] > floor && logits[id] <= FLT_MAX)) return;
    keys.push_back(key_of(logits[id], id));
    if (keys.size() == room) shrink();
  };
  int i = 0;
  for (; i + 4 <= vocab; i += 4) {
    if (!any(load(logits + i) > splat(floor))) continue;
    for (int lane = 0; lane < 4; ++lane) visit(i + lane);
  }
  for (; i < vocab; ++i) visit(i);
  if (keys.size() > wanted) shrink();
}

// Counter-based random words (Philox4x32-10): one word per (seed, branch, position, id).
class Noise {
 public:
  explicit Noise(const SampleRow& row)
      : key0_(static_cast<std::uint32_t>(row.seed)),
        key1_(static_cast<std::uint32_t>(row.seed >> 32)),
        position_(static_cast<std::uint32_t>(row.position)),
        branch_(static_cast<std::uint32_t>(row.branch)) {}

  // Words of ids 4 * group ... 4 * group + 3.
  void words(std::uint32_t group, std::uint32_t out[4]) const {
    std::uint32_t c0 = group, c1 = position_, c2 = branch_, c3 = 0;
    std::uint32_t k0 = key0_, k1 = key1_;
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c0;
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c2;
      c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<std::uint32_t>(p1);
      c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<std::uint32_t>(p0);
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
  }

  // Words of the 16 ids from 4 * group: out[g] holds those of group + g.
  void block(std::uint32_t group, U4 out[4]) const {
#if defined(__SSE2__)
    __m128i c0 = _mm_add_epi32(_mm_set1_epi32(static_cast<int>(group)), _mm_setr_epi32(0, 1, 2, 3));
    __m128i c1 = _mm_set1_epi32(static_cast<int>(position_));
    __m128i c2 = _mm_set1_epi32(static_cast<int>(branch_));
    __m128i c3 = _mm_setzero_si128();
    std::uint32_t k0 = key0_, k1 = key1_;
    for (int round = 0; round < 10; ++round) {
      const Product p0 = multiply(c0, 0xD2511F53U);
      const Product p1 = multiply(c2, 0xCD9E8D57U);
      c0 = _mm_xor_si128(_mm_xor_si128(p1.high, c1), _mm_set1_epi32(static_cast<int>(k0)));
      c1 = p1.low;
      c2 = _mm_xor_si128(_mm_xor_si128(p0.high, c3), _mm_set1_epi32(static_cast<int>(k1)));
      c3 = p0.low;
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    const __m128i a = _mm_unpacklo_epi32(c0, c1), b = _mm_unpacklo_epi32(c2, c3);
    const __m128i c = _mm_unpackhi_epi32(c0, c1), d = _mm_unpackhi_epi32(c2, c3);
    out[0] = reinterpret_cast<U4>(_mm_unpacklo_epi64(a, b));
    out[1] = reinterpret_cast<U4>(_mm_unpackhi_epi64(a, b));
    out[2] = reinterpret_cast<U4>(_mm_unpacklo_epi64(c, d));
    out[3] = reinterpret_cast<U4>(_mm_unpackhi_epi64(c, d));
#else
    for (std::uint32_t g = 0; g < 4; ++g) {
      std::uint32_t line[4];
      words(group + g, line);
      std::memcpy(&out[g], line, sizeof(line));
    }
#endif
  }

 private:
#if defined(__SSE2__)
  struct Product {
    __m128i low, high;
  };

  static Product multiply(__m128i words, std::uint32_t factor) {
    const __m128i by = _mm_set1_epi32(static_cast<int>(factor));
    const __m128i even = _mm_mul_epu32(words, by);
    const __m128i odd = _mm_mul_epu32(_mm_srli_epi64(words, 32), by);
    const __m128i upper = _mm_set1_epi64x(static_cast<long long>(0xFFFFFFFF00000000ULL));
    return {_mm_or_si128(_mm_andnot_si128(upper, even), _mm_slli_epi64(odd, 32)),
            _mm_or_si128(_mm_srli_epi64(even, 32), _mm_and_si128(upper, odd))};
  }
#endif

  std::uint32_t key0_, key1_, position_, branch_;
};

float gumbel(std::uint32_t word) {
  const float u = (static_cast<float>(word >> 9) + 0.5F) * 0x1p-23F;
  return -log1(-log1(u));
}

// Nowhere below gumbel(word), to within kMargin. -log(u) >= 1 - u, which is an odd integer times
// 2^-24; and the bits of a float, read as a number, lie below its logarithm: log2(1 + x) >= x.
F4 gumbel_bound(U4 words) {
  const U4 odd = ((U4{1, 1, 1, 1} << 24) - 1) - ((words >> 9) << 1);
  const F4 value = __builtin_convertvector(reinterpret_cast<I4>(odd), F4);
  const F4 log2 = __builtin_convertvector(reinterpret_cast<I4>(value), F4) * 0x1p-23F - 127.0F;
  return (24.0F - log2) * kLn2;
}

// The Gumbel-max race. A token that cannot beat the leader is dropped before its logarithms, or
// before its random word, without changing the winner.
class Race {
 public:
  // `last` is the key that closes the field: smaller ones do not take part.
  Race(const float* logits, const SampleRow& row, std::int32_t top, std::uint64_t last)
      : logits_(logits), row_(row), noise_(row), top_(top), highest_(logits[top]), last_(last) {
    if (last != 0) floor_ = logits[id_of(last)];
    enter(top);
  }

  std::int32_t winner() const { return leader_; }

  float scaled(std::int32_t id) const { return (logits_[id] - highest_) / row_.temperature; }

  void enter(std::int32_t id) {
    const float z = scaled(id);
    if (z + kMaxNoise + kMargin < score_) return;
    std::uint32_t words[4];
    noise_.words(static_cast<std::uint32_t>(id) >> 2, words);
    compare(id, z, words[id & 3]);
  }

  void enter_all(int vocab) {
    int i = 0;
    for (; i + 16 <= vocab; i += 16) {
      F4 logits[4];
      std::memcpy(logits, logits_ + i, sizeof(logits));
      const F4 floor = splat(floor_);
      if (!any((logits[0] >= floor) | (logits[1] >= floor) | (logits[2] >= floor) |
               (logits[3] >= floor))) {
        continue;
      }
      U4 words[4];
      noise_.block(static_cast<std::uint32_t>(i) >> 2, words);
      for (int group = 0; group < 4; ++group) {
        enter_four(i + 4 * group, logits[group], words[group]);
      }
    }
    for (; i < vocab; ++i) {
      if (is_finite(logits_[i])) enter(i);
    }
  }

 private:
  void enter_four(std::int32_t id, F4 logits, U4 words) {
    const F4 reach = (logits - highest_) / row_.temperature + gumbel_bound(words) + kMargin;
    // Not finite: +inf and NaN are left out here, -inf by its reach.
    const I4 open = (reach >= splat(score_)) & (logits <= splat(FLT_MAX));
    if (!any(open)) return;
    for (int lane = 0; lane < 4; ++lane) {
      if (open[lane] != 0) compare(id + lane, scaled(id + lane), words[lane]);
    }
  }

  void compare(std::int32_t id, float z, std::uint32_t word) {
    const float score = z + gumbel(word);
    const bool ahead = score > score_ || (score == score_ && id < leader_);
    if (!ahead) return;
    if (key_of(logits_[id], id) < last_) return;
    if (id != top_ && row_.min_p > 0.0F && !(exp1(z) >= row_.min_p)) return;
    score_ = score;
    leader_ = id;
    // Logits below this have no chance; rounded down by way of the margin.
    const double reach = static_cast<double>(score_) - kMaxNoise - kMargin;
    const float floor = static_cast<float>(highest_ + reach * row_.temperature);
    floor_ = std::max(floor_, floor - std::max(-floor, floor) * 1e-6F);
  }

  const float* logits_;
  const SampleRow& row_;
  Noise noise_;
  std::int32_t top_;
  float highest_;
  std::uint64_t last_;
  std::int32_t leader_ = kNoToken;
  float score_ = -kInfinity;
  float floor_ = -kInfinity;
};

// The last key, in key order, of the shortest prefix whose mass, counted from `before`, reaches
// `target`. All keys together reach it. Reorders them.
std::uint64_t reach_mass(std::vector<std::uint64_t>& keys, std::int64_t before, double target,
                         const float* weights) {
  auto low = keys.begin();
  auto high = keys.end();
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, std::greater<>());
    std::int64_t mass = 0;
    for (auto key = low; key != middle; ++key) mass += mass1(weights[id_of(*key)]);
    if (static_cast<double>(before + mass) >= target) {
      high = middle;
    } else {
      before += mass;
      low = middle;
    }
  }
  return *low;
}

// Exponentials of the whole row, their mass by bucket, and each token's bucket: how far its logit
// lies below the highest, in quarters of the temperature.
class MassHistogram {
 public:
  static constexpr int kBuckets = 128;  // weights deeper than 31.2 have no mass

  MassHistogram(const float* logits, int vocab, float highest, float temperature,
                SamplerScratch& scratch)
      : highest_(highest), temperature_(temperature) {
    scratch.weights.resize(static_cast<std::size_t>(vocab) + 3);
    scratch.buckets.resize(static_cast<std::size_t>(vocab) + 3);
    float* weights = scratch.weights.data();
    std::uint8_t* buckets = scratch.buckets.data();
    int i = 0;
    for (; i + 4 <= vocab; i += 4) add(load(logits + i), weights + i, buckets + i);
    if (i == vocab) return;
    F4 rest = splat(-kInfinity);
    std::memcpy(&rest, logits + i, static_cast<std::size_t>(vocab - i) * sizeof(float));
    add(rest, weights + i, buckets + i);
  }

  std::int64_t mass(int bucket) const { return mass_[bucket]; }

  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const std::int64_t mass : mass_) sum += mass;
    return sum;
  }

 private:
  void add(F4 logits, float* weights, std::uint8_t* buckets) {
    const F4 scaled = (logits - highest_) / temperature_;
    const F4 weight = exp4(scaled);
    const F4 depth = scaled * -4.0F;
    const I4 inside = (depth >= splat(0.0F)) & (depth < splat(kBuckets - 1.0F));
    const I4 bucket = __builtin_convertvector(inside ? depth : splat(kBuckets - 1.0F), I4);
    L4 mass;
    mass4(weight, mass);
    std::memcpy(weights, &weight, sizeof(weight));
    for (int lane = 0; lane < 4; ++lane) {
      mass_[bucket[lane]] += mass[lane];
      buckets[lane] = static_cast<std::uint8_t>(bucket[lane]);
    }
  }

  float highest_, temperature_;
  std::int64_t mass_[kBuckets] = {};
};

// Top-p over the whole row: the key that closes it. Only the bucket in which the mass is reached
// is looked at token by token.
std::uint64_t mass_cutoff(const float* logits, int vocab, const SampleRow& row, float highest,
                          SamplerScratch& scratch) {
  const MassHistogram histogram(logits, vocab, highest, row.temperature, scratch);
  const double target = static_cast<double>(row.top_p) * static_cast<double>(histogram.total());
  int bucket = 0;
  std::int64_t before = 0;
  while (static_cast<double>(before + histogram.mass(bucket)) < target) {
    before += histogram.mass(bucket++);
  }
  scratch.keys.clear();
  const std::uint8_t* const begin = scratch.buckets.data();
  const std::uint8_t* const end = begin + vocab;
  for (const std::uint8_t* at = begin; at != end; ++at) {
    at = static_cast<const std::uint8_t*>(
        std::memchr(at, bucket, static_cast<std::size_t>(end - at)));
    if (at == nullptr) break;
    const auto id = static_cast<std::int32_t>(at - begin);
    if (scratch.weights[static_cast<std::size_t>(id)] > 0.0F) {
      scratch.keys.push_back(key_of(logits[id], id));
    }
  }
  return reach_mass(scratch.keys, before, target, scratch.weights.data());
}

// Top-k, then top-p of what it left: the key that closes them.
std::uint64_t top_cutoff(const float* logits, int vocab, const SampleRow& row, float highest,
                         SamplerScratch& scratch) {
  std::vector<std::uint64_t>& keys = scratch.keys;
  select_top(logits, vocab, row.top_k, keys);
  if (!(row.top_p < 1.0F)) return *std::min_element(keys.begin(), keys.end());
  scratch.weights.resize(static_cast<std::size_t>(vocab));
  std::int64_t total = 0;
  for (const std::uint64_t key : keys) {
    const std::int32_t id = id_of(key);
    const float weight = exp1((logits[id] - highest) / row.temperature);
    scratch.weights[static_cast<std::size_t>(id)] = weight;
    total += mass1(weight);
  }
  const double target = static_cast<double>(row.top_p) * static_cast<double>(total);
  return reach_mass(keys, 0, target, scratch.weights.data());
}

std::int32_t choose(const float* logits, int vocab, const SampleRow& row,
                    SamplerScratch& scratch) {
  const std::int32_t top = argmax(logits, vocab);
  if (top == kNoToken || row.temperature < FLT_MIN) return top;
  std::uint64_t last = 0;
  if (row.top_k > 0 && row.top_k < vocab) {
    last = top_cutoff(logits, vocab, row, logits[top], scratch);
  } else if (row.top_p < 1.0F) {
    last = mass_cutoff(logits, vocab, row, logits[top], scratch);
  }
  Race race(logits, row, top, last);
  race.enter_all(vocab);
  return race.winner();
}

void apply_penalties(float* logits, int vocab, const SampleRow& row,
                     std::vector<std::int32_t>& counts) {
  counts.resize(static_cast<std::size_t>(vocab), 0);
  for (std::int32_t i = 0; i < row.num_history; ++i) {
    const std::int32_t id = row.history[i];
    std::int32_t& count = counts[static_cast<std::size_t>(id)];
    if (count == 0) {
      const float value = logits[id];
      logits[id] = value > 0.0F ? value / row.repetition_penalty : value * row.repetition_penalty;
      count = kSeen;
    }
    if (i >= row.num_prompt) ++count;
  }
  for (std::int32_t i = 0; i < row.num_history; ++i) {
    const std::int32_t id = row.history[i];
    const std::int32_t said = counts[static_cast<std::size_t>(id)] & ~kSeen;
    counts[static_cast<std::size_t>(id)] = 0;
    if (said == 0) continue;
    logits[id] = logits[id] - row.frequency_penalty * static_cast<float>(said);
    logits[id] = logits[id] - row.presence_penalty;
  }
}

// The row after penalties, bias, bans and mask: the given one where nothing changes it.
const float* adjust(const float* logits, int vocab, const SampleRow& row,
                    SamplerScratch& scratch) {
  const bool penalised =
      row.num_history > 0 && (row.repetition_penalty != 1.0F || row.presence_penalty != 0.0F ||
                              row.frequency_penalty != 0.0F);
  if (!penalised && row.num_bias == 0 && row.num_banned == 0 && row.mask == nullptr) return logits;
  scratch.logits.assign(logits, logits + vocab);
  float* out = scratch.logits.data();
  if (penalised) apply_penalties(out, vocab, row, scratch.counts);
  for (std::int32_t i = 0; i < row.num_bias; ++i) out[row.bias_ids[i]] += row.bias_values[i];
  for (std::int32_t i = 0; i < row.num_banned; ++i) out[row.banned_ids[i]] = -kInfinity;
  for (int id = 0; row.mask != nullptr && id < vocab; ++id) {
    if (((row.mask[id >> 5] >> (id & 31)) & 1U) == 0) out[id] = -kInfinity;
  }
  return out;
}

void report_logprobs(const float* logits, int vocab, int count, SamplerScratch& scratch,
                     SampleResult* result) {
  std::fill_n(result->top_ids, count, kNoToken);
  std::fill_n(result->top_logprobs, count, -kInfinity);
  result->logprob = -kInfinity;
  const std::int32_t top = argmax(logits, vocab);
  if (top == kNoToken) return;
  const float highest = logits[top];
  const std::int64_t mass = row_mass(logits, vocab, highest);
  const float norm = log1(static_cast<float>(static_cast<double>(mass) / kMassScale));
  if (result->token != kNoToken) result->logprob = (logits[result->token] - highest) - norm;
  if (count == 0) return;
  select_top(logits, vocab, count, scratch.keys);
  std::sort(scratch.keys.begin(), scratch.keys.end(), std::greater<>());
  for (std::size_t i = 0; i < scratch.keys.size(); ++i) {
    const std::int32_t id = id_of(scratch.keys[i]);
    result->top_ids[i] = id;
    result->top_logprobs[i] = (logits[id] - highest) - norm;
  }
}

}  // namespace

void sample_row(const float* logits, int vocab, const SampleRow& row, SamplerScratch& scratch,
                SampleResult* result) {
  const FloatMode ieee;
  if (row.forced >= 0) {
    result->token = is_finite(logits[row.forced]) ? row.forced : kNoToken;
  } else {
    const float* adjusted = adjust(logits, vocab, row, scratch);
    result->token = choose(adjusted, vocab, row, scratch);
  }
  result->logprob = 0.0F;
  if (row.num_logprobs >= 0) report_logprobs(logits, vocab, row.num_logprobs, scratch, result);
}

}  // namespace octavo
