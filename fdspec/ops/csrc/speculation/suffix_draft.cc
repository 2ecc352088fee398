// SPDX-License-Identifier: Apache-2.0
// Drafts from a suffix tree: the best chain, and the most probable paths as a tree.
#include <algorithm>
#include <cmath>

#include "speculation/suffix_tree.h"

namespace fdspec {
namespace {

constexpr int32_t kNone = -1;
// Of a node with more children only the most frequent one is drafted: the others are improbable.
constexpr int32_t kMaxBranches = 64;

// A token that could be added to a draft tree.
struct Candidate {
  double probability;  // weight, less what a path of this depth is doubted
  double weight;       // belief in the match, times the share of each branch taken
  int64_t match_length;
  int64_t depth;
  int32_t parent;  // in the draft
  int32_t token;
  int32_t node;    // whose edge the token is on
  int32_t offset;  // of the token in the edge
};

bool is_behind(const Candidate& a, const Candidate& b) {
  if (a.probability != b.probability) return a.probability < b.probability;
  if (a.match_length != b.match_length) return a.match_length < b.match_length;
  if (a.parent != b.parent) return a.parent > b.parent;
  return a.token > b.token;
}

}  // namespace

DraftTree SuffixTree::draft_chain(int32_t text, int64_t max_tokens, double factor,
                                  double min_probability) const {
  const Text& source = at(text);
  const int64_t length = static_cast<int64_t>(source.tokens.size());
  DraftTree draft;
  if (source.state != State::kGrowing) return draft;
  int32_t best_start = kNone;
  int64_t best_length = 0;
  for (int64_t match = 1; match <= std::min(max_depth_, length); ++match) {
    const int32_t start = source.active[static_cast<size_t>((length - match) % max_depth_)];
    if (nodes_[static_cast<size_t>(start)].best == kNone) break;
    const int64_t budget = std::min(
        max_tokens, static_cast<int64_t>(std::floor(factor * static_cast<double>(match) + 1e-6)));
    double probability = 1.0, score = 0.0;
    int64_t drafted = 0;
    for (int32_t node = start; drafted < budget;) {
      const Node& from = nodes_[static_cast<size_t>(node)];
      if (from.best == kNone) break;
      const Node& to = nodes_[static_cast<size_t>(from.best)];
      probability *= static_cast<double>(frequency(to)) / static_cast<double>(from.continued);
      if (probability < min_probability) break;
      const int64_t taken = std::min<int64_t>(to.length, budget - drafted);
      score += probability * static_cast<double>(taken);
      drafted += taken;
      node = from.best;
    }
    if (drafted > 0 && score >= draft.score) {
      draft.score = score;
      draft.match_length = match;
      best_start = start;
      best_length = drafted;
    }
  }
  for (int32_t node = best_start; static_cast<int64_t>(draft.tokens.size()) < best_length;) {
    node = nodes_[static_cast<size_t>(node)].best;
    const Node& to = nodes_[static_cast<size_t>(node)];
    const int32_t* edge = texts_[static_cast<size_t>(to.text)].tokens.data() + to.start;
    const int64_t left = best_length - static_cast<int64_t>(draft.tokens.size());
    draft.tokens.insert(draft.tokens.end(), edge, edge + std::min<int64_t>(to.length, left));
  }
  for (int64_t i = 0; i < best_length; ++i) draft.parents.push_back(static_cast<int32_t>(i - 1));
  return draft;
}

DraftTree SuffixTree::draft_tree(int32_t text, int64_t max_tokens, double min_probability) const {
  const Text& source = at(text);
  const int64_t length = static_cast<int64_t>(source.tokens.size());
  DraftTree draft;
  if (source.state != State::kGrowing || max_tokens <= 0) return draft;
  std::vector<Candidate> candidates;
  const auto push = [&](double weight, int64_t match, int64_t depth, int32_t parent, int32_t token,
                        int32_t node, int32_t offset) {
    const double probability =
        weight * static_cast<double>(match) / static_cast<double>(match + depth);
    if (probability < min_probability) return;
    candidates.push_back({probability, weight, match, depth, parent, token, node, offset});
    std::push_heap(candidates.begin(), candidates.end(), is_behind);
  };
  const auto push_children = [&](int32_t node, double weight, int64_t match, int64_t depth,
                                 int32_t parent) {
    const Node& from = nodes_[static_cast<size_t>(node)];
    const bool is_broad = from.num_children > kMaxBranches;
    int32_t child = is_broad ? from.best : from.first_child;
    for (; child != kNone; child = is_broad ? kNone : nodes_[static_cast<size_t>(child)].next) {
      const Node& to = nodes_[static_cast<size_t>(child)];
      const double share = static_cast<double>(frequency(to)) / static_cast<double>(from.continued);
      push(weight * share, match, depth, parent, to.token, child, 0);
    }
  };

  int64_t match = 0;
  // After a longer match there would be no room for a path of max_tokens.
  const int64_t longest = std::min(std::max<int64_t>(max_depth_ - max_tokens, 1), length);
  for (; match < longest; ++match) {
    const int32_t node = source.active[static_cast<size_t>((length - match - 1) % max_depth_)];
    if (nodes_[static_cast<size_t>(node)].best == kNone) break;
  }
  draft.match_length = match;
  double left = 1.0;
  for (; match > 0 && left >= min_probability; --match) {
    push_children(source.active[static_cast<size_t>((length - match) % max_depth_)], left, match, 1,
                  -1);
    left /= static_cast<double>(match + 1);
  }

  while (!candidates.empty()) {
    std::pop_heap(candidates.begin(), candidates.end(), is_behind);
    const Candidate next = candidates.back();
    candidates.pop_back();
    // Shorter matches lead to the paths of longer ones too; these are one row.
    int32_t row = 0;
    const int32_t num_rows = static_cast<int32_t>(draft.tokens.size());
    while (row < num_rows && (draft.parents[static_cast<size_t>(row)] != next.parent ||
                              draft.tokens[static_cast<size_t>(row)] != next.token)) {
      ++row;
    }
    if (row == num_rows) {
      if (num_rows == max_tokens) break;
      draft.tokens.push_back(next.token);
      draft.parents.push_back(next.parent);
      draft.score += next.probability;
    }
    const Node& node = nodes_[static_cast<size_t>(next.node)];
    const int32_t offset = next.offset + 1;
    if (offset < node.length) {
      const Text& edge = texts_[static_cast<size_t>(node.text)];
      const int32_t token = edge.tokens[static_cast<size_t>(node.start + offset)];
      push(next.weight, next.match_length, next.depth + 1, row, token, next.node, offset);
    } else {
      push_children(next.node, next.weight, next.match_length, next.depth + 1, row);
    }
  }
  return draft;
}

}  // namespace fdspec
