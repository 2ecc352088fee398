// SPDX-License-Identifier: Apache-2.0
#include "speculation/ngram_index.h"

#include <algorithm>
#include <stdexcept>

#include "speculation/continuation.h"

namespace fdspec {
namespace {

constexpr size_t kFirstSlots = 64;

uint64_t hash_of(const int32_t* tokens, int64_t size) {
  uint64_t hash = 0;
  for (int64_t i = 0; i < size; ++i) {
    hash = (hash ^ static_cast<uint32_t>(tokens[i])) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

NgramIndex::NgramIndex(NgramLimits limits) : limits_(limits) {
  tables_.resize(static_cast<size_t>(limits.max_ngram - limits.min_ngram + 1));
  for (Table& table : tables_) table.slots.assign(kFirstSlots, 0);
}

void NgramIndex::follow(const int32_t* tokens, int64_t length) {
  if (!continues(tokens_, tokens, length)) *this = NgramIndex(limits_);
  tokens_.insert(tokens_.end(), tokens + tokens_.size(), tokens + length);
  for (; num_indexed_ + 1 < length; ++num_indexed_) {
    int64_t size = limits_.min_ngram;
    for (Table& table : tables_) insert(table, size++, num_indexed_ + 1);
  }
}

int64_t NgramIndex::draft(int64_t max_draft, int32_t* draft) const {
  if (max_draft <= 0) return 0;
  for (int64_t size = std::min(limits_.max_ngram, length() - 1); size >= limits_.min_ngram;
       --size) {
    const Table& table = tables_[static_cast<size_t>(size - limits_.min_ngram)];
    int64_t end = table.slots[find(table, size, length())];
    if (end == 0) continue;
    // The latest end with max_draft tokens after it, else the earliest.
    while (length() - end < max_draft && table.previous[static_cast<size_t>(end)] != 0) {
      end = table.previous[static_cast<size_t>(end)];
    }
    const int64_t period = length() - end;
    for (int64_t i = 0; i < max_draft; ++i) {
      draft[i] = i < period ? tokens_[static_cast<size_t>(end + i)] : draft[i - period];
    }
    return max_draft;
  }
  return 0;
}

int64_t NgramIndex::num_bytes() const {
  size_t count = tokens_.capacity();
  for (const Table& table : tables_) count += table.slots.capacity() + table.previous.capacity();
  return static_cast<int64_t>(count * sizeof(int32_t));
}

void NgramIndex::check() const {
  int64_t size = limits_.min_ngram;
  for (const Table& table : tables_) {
    int64_t num_used = 0;
    for (const int32_t end : table.slots) num_used += end != 0;
    if (num_used != table.num_used) throw std::logic_error("ngram index: lost count of its slots");
    for (int64_t end = size; end <= num_indexed_; ++end) {
      const int64_t last = table.slots[find(table, size, end)];
      if (last < end) throw std::logic_error("ngram index: an n-gram is missing");
    }
    ++size;
  }
}

size_t NgramIndex::find(const Table& table, int64_t size, int64_t end) const {
  const int32_t* ngram = tokens_.data() + end - size;
  const size_t mask = table.slots.size() - 1;
  size_t slot = hash_of(ngram, size) & mask;
  while (table.slots[slot] != 0 &&
         !std::equal(ngram, ngram + size, tokens_.data() + table.slots[slot] - size)) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

void NgramIndex::insert(Table& table, int64_t size, int64_t end) {
  table.previous.resize(static_cast<size_t>(end + 1));
  if (end < size) return;
  if (2 * table.num_used >= static_cast<int64_t>(table.slots.size())) grow(table, size);
  int32_t& last = table.slots[find(table, size, end)];
  table.num_used += last == 0;
  table.previous[static_cast<size_t>(end)] = last;
  last = static_cast<int32_t>(end);
}

void NgramIndex::grow(Table& table, int64_t size) {
  std::vector<int32_t> old(2 * table.slots.size(), 0);
  old.swap(table.slots);
  for (const int32_t end : old) {
    if (end != 0) table.slots[find(table, size, end)] = end;
  }
}

}  // namespace fdspec
