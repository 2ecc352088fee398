// SPDX-License-Identifier: Apache-2.0
#include "speculation/suffix_tree.h"

#include <algorithm>
#include <string>

#include "common/array_view.h"
#include "speculation/continuation.h"

namespace fdspec {
namespace {

constexpr int32_t kRoot = 0;
constexpr int32_t kNone = -1;

}  // namespace

SuffixTree::SuffixTree(int64_t max_depth, int64_t prompt_weight)
    : max_depth_(max_depth), prompt_weight_(prompt_weight) {
  nodes_.push_back({kNone, kNone, kNone, kNone, kNone, 0, 0, 0, 0, 0, kNone, 0, 0});
}

SuffixTree::Text& SuffixTree::at(int32_t text) {
  return const_cast<Text&>(static_cast<const SuffixTree*>(this)->at(text));
}

const SuffixTree::Text& SuffixTree::at(int32_t text) const {
  if (text < 0 || text >= static_cast<int32_t>(texts_.size()) ||
      texts_[static_cast<size_t>(text)].state == State::kFree) {
    throw ArgumentError("text: " + std::to_string(text) + " is not in the tree");
  }
  return texts_[static_cast<size_t>(text)];
}

const std::vector<int32_t>& SuffixTree::tokens(int32_t text) const { return at(text).tokens; }

int64_t SuffixTree::num_bytes() const {
  constexpr int64_t kNodeBytes = sizeof(Node) + 2 * sizeof(EdgeTable::Slot);
  return num_nodes() * kNodeBytes + num_tokens_ * static_cast<int64_t>(sizeof(int32_t));
}

// -- texts -----------------------------------------------------------------------------------

int32_t SuffixTree::add_text(int64_t num_prompt) {
  int32_t number = static_cast<int32_t>(texts_.size());
  if (free_texts_.empty()) {
    texts_.emplace_back();
  } else {
    number = free_texts_.back();
    free_texts_.pop_back();
  }
  Text& text = texts_[static_cast<size_t>(number)];
  text.state = State::kGrowing;
  text.num_prompt = num_prompt;
  text.active.assign(static_cast<size_t>(max_depth_), kRoot);
  return number;
}

bool SuffixTree::follow(int32_t text, const int32_t* tokens, int64_t length) {
  Text& known = at(text);
  if (known.state != State::kGrowing) throw ArgumentError("text: has been finished");
  if (!continues(known.tokens, tokens, length)) return false;
  for (int64_t i = static_cast<int64_t>(known.tokens.size()); i < length; ++i) {
    append(text, tokens[i]);
  }
  return true;
}

void SuffixTree::finish(int32_t text) {
  Text& finished = at(text);
  finished.state = State::kFinished;
  finished.active = {};
}

bool SuffixTree::remove(int32_t text, int64_t limit) {
  Text& removed = at(text);
  if (removed.state == State::kGrowing) throw ArgumentError("text: is still growing");
  const int64_t length = static_cast<int64_t>(removed.tokens.size());
  const int64_t end = std::min(removed.num_removed + limit, length);
  while (removed.num_removed < end) remove_suffix(removed, removed.num_removed++);
  if (removed.num_removed < length) return false;
  removed.state = State::kRemoved;
  ++removed.num_edges;
  drop_edge(text);  // frees it if no edge is read from it
  return true;
}

void SuffixTree::append(int32_t text, int32_t token) {
  Text& growing = texts_[static_cast<size_t>(text)];
  const int64_t position = static_cast<int64_t>(growing.tokens.size());
  growing.tokens.push_back(token);
  ++num_tokens_;
  growing.active[static_cast<size_t>(position % max_depth_)] = kRoot;
  // Longer suffixes first: they leave the node that a shorter one comes to.
  for (int64_t start = std::max<int64_t>(position + 1 - max_depth_, 0); start <= position;
       ++start) {
    int32_t& node = growing.active[static_cast<size_t>(start % max_depth_)];
    node = advance(node, text, static_cast<int32_t>(position), start < growing.num_prompt);
  }
}

// Moves the end of a suffix from a node along the token at `position` of its text.
int32_t SuffixTree::advance(int32_t node, int32_t text, int32_t position, bool in_prompt) {
  const int32_t token = texts_[static_cast<size_t>(text)].tokens[static_cast<size_t>(position)];
  // Most ends are leaves, which need no look-up.
  const bool is_leaf = nodes_[static_cast<size_t>(node)].num_children == 0;
  const int32_t child = is_leaf ? kNone : edges_.find(node, token);
  const int64_t weight = in_prompt ? prompt_weight_ : 1;
  Node& from = nodes_[static_cast<size_t>(node)];
  if (child == kNone) {
    if (node != kRoot && from.count == 1) {
      // A leaf that is this suffix alone grows with it.
      ++from.length;
      read_edge_from(node, text, position + 1 - from.length);
      return node;
    }
    const int32_t leaf = new_node(node, text, position, 1);
    nodes_[static_cast<size_t>(leaf)].count = 1;
    nodes_[static_cast<size_t>(leaf)].num_prompts = in_prompt;
    link(leaf);
    nodes_[static_cast<size_t>(node)].continued += weight;
    raise_best(node, leaf);
    return leaf;
  }
  Node& to = nodes_[static_cast<size_t>(child)];
  if (node != kRoot && from.num_children == 1 && from.count == to.count + 1) {
    // Only this suffix ends at the node, so the node itself moves down the edge.
    edges_.erase(node, token);
    if (to.length > 1) {
      ++from.length;
      read_edge_from(node, text, position + 1 - from.length);
      ++to.start;
      --to.length;
      to.token = texts_[static_cast<size_t>(to.text)].tokens[static_cast<size_t>(to.start)];
      edges_.set(node, to.token, child);
      return node;
    }
    to.length = from.length + 1;
    to.token = from.token;
    ++to.count;
    to.num_prompts += in_prompt;
    read_edge_from(child, text, position + 1 - to.length);
    replace_in_parent(node, child);
    free_node(node);
    return child;
  }
  if (to.length == 1) {
    ++to.count;
    to.num_prompts += in_prompt;
    read_edge_from(child, text, position);
    from.continued += weight;
    raise_best(node, child);
    return child;
  }
  // Cut the edge behind its first token.
  const int32_t middle = new_node(node, text, position, 1);
  Node& lower = nodes_[static_cast<size_t>(child)];
  Node& upper = nodes_[static_cast<size_t>(middle)];
  upper.count = lower.count + 1;
  upper.num_prompts = lower.num_prompts + in_prompt;
  replace_in_parent(child, middle);
  ++lower.start;
  --lower.length;
  lower.token = texts_[static_cast<size_t>(lower.text)].tokens[static_cast<size_t>(lower.start)];
  lower.parent = middle;
  link(child);
  upper.continued = frequency(lower);
  upper.best = child;
  nodes_[static_cast<size_t>(node)].continued += weight;
  raise_best(node, middle);
  return middle;
}

void SuffixTree::remove_suffix(const Text& text, int64_t start) {
  const int64_t end = std::min(start + max_depth_, static_cast<int64_t>(text.tokens.size()));
  const bool in_prompt = start < text.num_prompt;
  path_.clear();
  int32_t node = kRoot;
  for (int64_t position = start; position < end;) {
    node = edges_.find(node, text.tokens[static_cast<size_t>(position)]);
    path_.push_back(node);
    position += nodes_[static_cast<size_t>(node)].length;
  }
  for (size_t i = path_.size(); i-- > 0;) {
    node = path_[i];
    Node& passed = nodes_[static_cast<size_t>(node)];
    const int32_t parent = passed.parent;
    --passed.count;
    passed.num_prompts -= in_prompt;
    nodes_[static_cast<size_t>(parent)].continued -= in_prompt ? prompt_weight_ : 1;
    const bool was_best = nodes_[static_cast<size_t>(parent)].best == node;
    if (passed.count == 0) {
      edges_.erase(parent, passed.token);
      unlink(node);
      free_node(node);
    }
    if (was_best) find_best(parent);
    if (passed.count > 0) join_only_child(node);
  }
}

// Takes out a node at which nothing ends or branches any more.
void SuffixTree::join_only_child(int32_t node) {
  const Node& upper = nodes_[static_cast<size_t>(node)];
  if (upper.num_children != 1) return;
  const int32_t child = upper.first_child;
  Node& lower = nodes_[static_cast<size_t>(child)];
  if (lower.count != upper.count) return;
  edges_.erase(node, lower.token);
  // Whatever text passes the child has passed the node just before.
  lower.start -= upper.length;
  lower.length += upper.length;
  lower.token = upper.token;
  replace_in_parent(node, child);
  free_node(node);
}

// -- nodes -----------------------------------------------------------------------------------

int32_t SuffixTree::new_node(int32_t parent, int32_t text, int32_t start, int32_t length) {
  int32_t number = static_cast<int32_t>(nodes_.size());
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
  } else {
    number = free_nodes_.back();
    free_nodes_.pop_back();
  }
  Text& source = texts_[static_cast<size_t>(text)];
  ++source.num_edges;
  const int32_t token = source.tokens[static_cast<size_t>(start)];
  nodes_[static_cast<size_t>(number)] = {parent, kNone, kNone, kNone, kNone, 0,     0,
                                         0,      0,     token, text,  start, length};
  return number;
}

void SuffixTree::free_node(int32_t node) {
  drop_edge(nodes_[static_cast<size_t>(node)].text);
  free_nodes_.push_back(node);
}

// Makes a node the first child of its parent.
void SuffixTree::link(int32_t node) {
  Node& child = nodes_[static_cast<size_t>(node)];
  Node& parent = nodes_[static_cast<size_t>(child.parent)];
  child.previous = kNone;
  child.next = parent.first_child;
  if (child.next != kNone) nodes_[static_cast<size_t>(child.next)].previous = node;
  parent.first_child = node;
  ++parent.num_children;
  edges_.set(child.parent, child.token, node);
}

void SuffixTree::unlink(int32_t node) {
  const Node& child = nodes_[static_cast<size_t>(node)];
  Node& parent = nodes_[static_cast<size_t>(child.parent)];
  if (child.previous == kNone) {
    parent.first_child = child.next;
  } else {
    nodes_[static_cast<size_t>(child.previous)].next = child.next;
  }
  if (child.next != kNone) nodes_[static_cast<size_t>(child.next)].previous = child.previous;
  --parent.num_children;
}

// Puts another node into a node's place among its siblings; both edges begin with the same token.
void SuffixTree::replace_in_parent(int32_t old_node, int32_t new_node) {
  const Node& before = nodes_[static_cast<size_t>(old_node)];
  Node& after = nodes_[static_cast<size_t>(new_node)];
  Node& parent = nodes_[static_cast<size_t>(before.parent)];
  after.parent = before.parent;
  after.previous = before.previous;
  after.next = before.next;
  if (after.previous == kNone) {
    parent.first_child = new_node;
  } else {
    nodes_[static_cast<size_t>(after.previous)].next = new_node;
  }
  if (after.next != kNone) nodes_[static_cast<size_t>(after.next)].previous = new_node;
  if (parent.best == old_node) parent.best = new_node;
  edges_.set(after.parent, after.token, new_node);
}

// A child has become more frequent. The root's children are never drafted from it.
void SuffixTree::raise_best(int32_t parent, int32_t child) {
  if (parent == kRoot) return;
  Node& node = nodes_[static_cast<size_t>(parent)];
  if (node.best != kNone) {
    const Node& best = nodes_[static_cast<size_t>(node.best)];
    const Node& rival = nodes_[static_cast<size_t>(child)];
    const int64_t lead = frequency(rival) - frequency(best);
    if (lead < 0 || (lead == 0 && rival.token >= best.token)) return;
  }
  node.best = child;
}

void SuffixTree::find_best(int32_t parent) {
  nodes_[static_cast<size_t>(parent)].best = kNone;
  if (parent == kRoot) return;
  int32_t child = nodes_[static_cast<size_t>(parent)].first_child;
  for (; child != kNone; child = nodes_[static_cast<size_t>(child)].next) raise_best(parent, child);
}

void SuffixTree::read_edge_from(int32_t node, int32_t text, int32_t start) {
  Node& reader = nodes_[static_cast<size_t>(node)];
  const int32_t old = reader.text;
  reader.start = start;
  if (old == text) return;
  reader.text = text;
  ++texts_[static_cast<size_t>(text)].num_edges;
  drop_edge(old);
}

void SuffixTree::drop_edge(int32_t text) {
  Text& source = texts_[static_cast<size_t>(text)];
  if (--source.num_edges > 0 || source.state != State::kRemoved) return;
  num_tokens_ -= static_cast<int64_t>(source.tokens.size());
  source = Text();
  free_texts_.push_back(text);
}

}  // namespace fdspec
