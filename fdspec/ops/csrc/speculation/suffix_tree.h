// SPDX-License-Identifier: Apache-2.0
// A tree of all substrings, up to a length, of texts that grow and leave: what followed where, and
// how often.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "speculation/edge_table.h"

namespace fdspec {

struct DraftTree {
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;  // -1 is the text's last token
  double score = 0.0;            // expected number of accepted tokens, by the tree's own counts
  int64_t match_length = 0;      // of the longest match
};

// A node stands for the string on the way to it from the root; an edge holds several tokens, read
// from a text. The end of every inserted suffix is a node, so that frequencies do not change inside
// an edge. A growing text knows the nodes of its last max_depth suffixes: appending a token moves
// each by one, and drafting starts from them without any search.
//
// Frequency of a node: how many suffixes pass it, where one that starts inside a prompt counts
// prompt_weight times. Two nodes at most for each token of a text, 80 bytes each.
class SuffixTree {
 public:
  // max_depth >= 1, prompt_weight >= 1.
  SuffixTree(int64_t max_depth, int64_t prompt_weight);

  // A new growing text, whose first num_prompt tokens are a prompt; returns its number.
  int32_t add_text(int64_t num_prompt);

  // Takes a whole growing text and appends what is new. False, without any change, if it is no
  // continuation of the text so far.
  bool follow(int32_t text, const int32_t* tokens, int64_t length);

  // The text will not grow any more; its substrings stay.
  void finish(int32_t text);

  // Takes up to `limit` more suffixes of a finished text out, the oldest first. True when all are;
  // then its number may be given to another text.
  bool remove(int32_t text, int64_t limit);

  // A chain that continues a growing text. For each match length m, while the last m tokens occur
  // with a continuation: go to the most frequent child, up to min(max_tokens, factor * m) tokens,
  // as long as the probability of the whole path is at least min_probability. The chain with the
  // largest sum of path probabilities wins, ties by the longer match.
  DraftTree draft_chain(int32_t text, int64_t max_tokens, double factor,
                        double min_probability) const;

  // A tree of up to max_tokens tokens, the most probable paths first. The longest match of at most
  // max_depth - max_tokens tokens counts; a match of m tokens is believed with probability
  // m / (m + d) for a path of d tokens, and what the first of them leaves goes to the match of m
  // - 1.
  DraftTree draft_tree(int32_t text, int64_t max_tokens, double min_probability) const;

  const std::vector<int32_t>& tokens(int32_t text) const;
  int64_t num_prompt(int32_t text) const { return at(text).num_prompt; }

  int64_t num_nodes() const { return static_cast<int64_t>(nodes_.size() - free_nodes_.size()); }
  int64_t num_bytes() const;

  // Throws std::logic_error if nodes, edges and texts do not agree.
  void check() const;

 private:
  enum class State { kFree, kGrowing, kFinished, kRemoved };

  struct Node {
    int32_t parent, first_child, next, previous;  // siblings are a list
    int32_t best;                                 // most frequent child, ties by the lower token
    int32_t num_children;
    int32_t count;                // suffixes that pass or end here
    int32_t num_prompts;          // of these, how many start inside a prompt
    int64_t continued;            // sum of the children's frequencies
    int32_t token;                // first of the edge
    int32_t text, start, length;  // the edge: tokens[start .. start + length) of a text
  };

  struct Text {
    std::vector<int32_t> tokens;
    std::vector<int32_t> active;  // [start % max_depth] node at which that suffix ends now
    int64_t num_prompt = 0;
    int64_t num_removed = 0;  // suffixes taken out so far
    int64_t num_edges = 0;    // that are read from here; a removed text stays until there is none
    State state = State::kFree;
  };

  Text& at(int32_t text);
  const Text& at(int32_t text) const;
  int64_t frequency(const Node& node) const {
    return node.count + (prompt_weight_ - 1) * node.num_prompts;
  }

  void append(int32_t text, int32_t token);
  int32_t advance(int32_t node, int32_t text, int32_t position, bool in_prompt);
  void remove_suffix(const Text& text, int64_t start);
  void join_only_child(int32_t node);

  int32_t new_node(int32_t parent, int32_t text, int32_t start, int32_t length);
  void free_node(int32_t node);
  void link(int32_t node);
  void unlink(int32_t node);
  void replace_in_parent(int32_t old_node, int32_t new_node);
  void raise_best(int32_t parent, int32_t child);
  void find_best(int32_t parent);
  void read_edge_from(int32_t node, int32_t text, int32_t start);
  void drop_edge(int32_t text);

  int64_t max_depth_;
  int64_t prompt_weight_;
  std::vector<Node> nodes_;
  std::vector<int32_t> free_nodes_;
  EdgeTable edges_;
  std::vector<Text> texts_;
  std::vector<int32_t> free_texts_;
  std::vector<int32_t> path_;  // of remove_suffix
  int64_t num_tokens_ = 0;     // of all texts
};

}  // namespace fdspec
