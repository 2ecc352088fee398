// SPDX-License-Identifier: Apache-2.0
#include "sampling/candidates.h"

#include <algorithm>

namespace fdspec {
namespace {

bool comes_before(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

}  // namespace

void select_best(Candidate* candidates, int64_t count, int64_t keep) {
  std::nth_element(candidates, candidates + keep - 1, candidates + count, comes_before);
}

int64_t select_mass(Candidate* candidates, int64_t count, double mass) {
  // The prefix ends inside [begin, end): all before begin weigh less than mass, all before end
  // enough.
  int64_t begin = 0, end = count, weight = 0;
  while (end - begin > 1) {
    const int64_t middle = begin + (end - begin) / 2;
    std::nth_element(candidates + begin, candidates + middle, candidates + end, comes_before);
    int64_t left = 0;
    for (int64_t i = begin; i < middle; ++i) left += candidates[i].weight;
    if (static_cast<double>(weight + left) >= mass) {
      end = middle;
    } else {
      weight += left;
      begin = middle;
    }
  }
  return end;
}

void sort_candidates(Candidate* candidates, int64_t count) {
  std::sort(candidates, candidates + count, comes_before);
}

}  // namespace fdspec
