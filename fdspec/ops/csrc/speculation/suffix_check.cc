// SPDX-License-Identifier: Apache-2.0
// The books of a suffix tree, gone over for tests.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "speculation/suffix_tree.h"

namespace fdspec {
namespace {

void expect(bool holds, const char* what) {
  if (!holds) throw std::logic_error(std::string("suffix tree: ") + what);
}

}  // namespace

void SuffixTree::check() const {
  std::vector<bool> is_free(nodes_.size());
  for (const int32_t node : free_nodes_) is_free[static_cast<size_t>(node)] = true;
  std::vector<int64_t> num_edges(texts_.size());
  int64_t num_nodes = 0;
  for (size_t number = 0; number < nodes_.size(); ++number) {
    if (is_free[number]) continue;
    ++num_nodes;
    const Node& node = nodes_[number];
    int64_t count = 0, continued = 0;
    int32_t num_children = 0, previous = -1, best = -1;
    for (int32_t at = node.first_child; at >= 0; at = nodes_[static_cast<size_t>(at)].next) {
      const Node& child = nodes_[static_cast<size_t>(at)];
      expect(!is_free[static_cast<size_t>(at)], "a child is gone");
      expect(child.parent == static_cast<int32_t>(number), "a child has another parent");
      expect(child.previous == previous, "siblings are linked wrongly");
      expect(edges_.find(child.parent, child.token) == at, "an edge is missing");
      if (best < 0 || frequency(child) > frequency(nodes_[static_cast<size_t>(best)]) ||
          (frequency(child) == frequency(nodes_[static_cast<size_t>(best)]) &&
           child.token < nodes_[static_cast<size_t>(best)].token)) {
        best = at;
      }
      count += child.count;
      continued += frequency(child);
      ++num_children;
      previous = at;
    }
    expect(node.num_children == num_children, "a node lost count of its children");
    expect(node.continued == continued, "frequencies of children do not add up");
    if (number == 0) continue;
    expect(node.best == best, "another child is more frequent");
    expect(node.count >= count && node.count > 0, "a node is passed less often than its children");
    const Text& text = texts_[static_cast<size_t>(node.text)];
    expect(text.state != State::kFree, "an edge is read from a text that is gone");
    const int64_t length = static_cast<int64_t>(text.tokens.size());
    expect(node.length >= 1 && node.start >= 0 && node.start + node.length <= length,
           "an edge lies outside its text");
    expect(text.tokens[static_cast<size_t>(node.start)] == node.token, "an edge's first token");
    ++num_edges[static_cast<size_t>(node.text)];
  }
  expect(static_cast<int64_t>(edges_.size()) == num_nodes - 1, "there are edges to nowhere");
  int64_t num_tokens = 0, num_suffixes = 0;
  for (size_t number = 0; number < texts_.size(); ++number) {
    const Text& text = texts_[number];
    expect(text.num_edges == num_edges[number], "a text lost count of its edges");
    const int64_t length = static_cast<int64_t>(text.tokens.size());
    num_tokens += length;
    if (text.state == State::kFree || text.state == State::kRemoved) continue;
    num_suffixes += length - text.num_removed;
    for (int64_t start = text.num_removed; start < length; ++start) {
      int64_t position = start;
      int32_t node = 0;
      while (position < std::min(start + max_depth_, length)) {
        node = edges_.find(node, text.tokens[static_cast<size_t>(position)]);
        expect(node >= 0, "a suffix is missing");
        const Node& passed = nodes_[static_cast<size_t>(node)];
        const int32_t* edge = texts_[static_cast<size_t>(passed.text)].tokens.data() + passed.start;
        expect(position + passed.length <= length &&
                   std::equal(edge, edge + passed.length, text.tokens.data() + position),
               "a suffix ends inside an edge, or its edge says something else");
        position += passed.length;
      }
      if (text.state == State::kGrowing && start + max_depth_ > length - 1) {
        expect(start + max_depth_ < length ||
                   text.active[static_cast<size_t>(start % max_depth_)] == node,
               "the end of a suffix is not where it is kept");
      }
    }
  }
  expect(num_tokens == num_tokens_, "lost count of tokens");
  int64_t at_root = 0;
  for (int32_t at = nodes_[0].first_child; at >= 0; at = nodes_[static_cast<size_t>(at)].next) {
    at_root += nodes_[static_cast<size_t>(at)].count;
  }
  expect(at_root == num_suffixes, "the root is left by another number of suffixes");
}

}  // namespace fdspec
