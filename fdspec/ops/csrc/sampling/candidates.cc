// SPDX-License-Identifier: Apache-2.0
#include "sampling/candidates.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace fdspec {
namespace {

bool comes_before(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

// Like std::partition, for conditions that no processor can predict.
template <class Condition>
Candidate* partition(Candidate* begin, Candidate* end, Condition condition) {
  Candidate* middle = begin;
  for (Candidate* next = begin; next < end; ++next) {
    const bool is_first = condition(*next);
    std::swap(*middle, *next);
    middle += is_first;
  }
  return middle;
}

template <class Condition>
int64_t weight_of(const Candidate* candidates, int64_t count, Condition condition) {
  int64_t weight = 0;
  for (int64_t i = 0; i < count; ++i) {
    weight += condition(candidates[i]) ? candidates[i].weight : 0;
  }
  return weight;
}

}  // namespace

void select_best(Candidate* candidates, int64_t count, int64_t keep) {
  std::nth_element(candidates, candidates + keep - 1, candidates + count, comes_before);
}

int64_t select_mass(Candidate* candidates, int64_t count, double mass, float top) {
  // Sums by distance from the top find the stretch of scores in which the prefix ends.
  constexpr int kBuckets = 256;
  constexpr float kBucketsPerUnit = 8.0f;  // weights are 0 after less than 29 units
  const auto bucket_of = [top](const Candidate& candidate) {
    const float distance = (top - candidate.score) * kBucketsPerUnit;
    return distance < kBuckets - 1 ? static_cast<int>(distance) : kBuckets - 1;
  };
  int64_t sums[kBuckets] = {};
  for (int64_t i = 0; i < count; ++i) sums[bucket_of(candidates[i])] += candidates[i].weight;
  int64_t weight = 0;
  int last = 0;
  while (last < kBuckets - 1 && static_cast<double>(weight + sums[last]) < mass) {
    weight += sums[last++];
  }
  Candidate* const all_end = candidates + count;
  Candidate* const before_end =
      partition(candidates, all_end, [&](const Candidate& c) { return bucket_of(c) < last; });
  Candidate* const bucket_end =
      partition(before_end, all_end, [&](const Candidate& c) { return bucket_of(c) == last; });

  // The prefix ends inside [begin, end): all before begin weigh less than mass, all before end
  // enough, or else the prefix is everything.
  Candidate* begin = before_end;
  Candidate* end = bucket_end;
  while (end - begin > 1) {
    Candidate* const middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, comes_before);
    int64_t left = 0;
    for (const Candidate* c = begin; c < middle; ++c) left += c->weight;
    if (static_cast<double>(weight + left) >= mass) {
      end = middle;
    } else {
      weight += left;
      begin = middle;
    }
  }
  return end - candidates;
}

int64_t weight_above(const Candidate* candidates, int64_t count, float lowest) {
  return weight_of(candidates, count, [=](const Candidate& c) { return c.score >= lowest; });
}

int64_t weight_before(const Candidate* candidates, int64_t count, const Candidate& last) {
  // Without a branch, which no processor could predict.
  return weight_of(candidates, count, [score = last.score, token = last.token](const Candidate& c) {
    return (c.score > score) | ((c.score == score) & (c.token < token));
  });
}

int64_t select_before(Candidate* candidates, int64_t count, Candidate last) {
  const Candidate* const end = partition(candidates, candidates + count,
                                         [&](const Candidate& c) { return comes_before(c, last); });
  return end - candidates;
}

Measure measure(const Candidate* candidates, int64_t count) {
  Measure result{0, std::numeric_limits<float>::infinity()};
  for (int64_t i = 0; i < count; ++i) {
    result.weight += candidates[i].weight;
    result.lowest = std::min(result.lowest, candidates[i].score);
  }
  return result;
}

float select_largest(float* values, int64_t count, int64_t keep) {
  std::nth_element(values, values + keep - 1, values + count, std::greater<float>());
  return values[keep - 1];
}

void sort_candidates(Candidate* candidates, int64_t count) {
  std::sort(candidates, candidates + count, comes_before);
}

}  // namespace fdspec
