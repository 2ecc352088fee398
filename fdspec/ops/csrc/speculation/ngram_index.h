// SPDX-License-Identifier: Apache-2.0
// An index of the n-grams of one growing sequence, so that looking one up costs the same after any
// number of tokens. Drafts are those of ngram_draft().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "speculation/ngram.h"

namespace fdspec {

// For each size a hash table from n-gram to where it ended last, and for each end where the same
// n-gram ended before. About 12 bytes for each token and size.
class NgramIndex {
 public:
  explicit NgramIndex(NgramLimits limits);

  // Takes the whole sequence and indexes what is new. A sequence that is no continuation of the one
  // before (it is shorter, or differs where that one ended) starts the index anew.
  void follow(const int32_t* tokens, int64_t length);

  // As ngram_draft() of the sequence. At most max_draft steps for each size.
  int64_t draft(int64_t max_draft, int32_t* draft) const;

  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t num_bytes() const;

  // Throws std::logic_error if a table misses an n-gram or names another one.
  void check() const;

 private:
  struct Table {
    std::vector<int32_t> slots;     // ends; 0 is an empty slot; the size is a power of two
    std::vector<int32_t> previous;  // [end] the end before with the same n-gram, or 0
    int64_t num_used = 0;
  };

  // The slot of the n-gram that ends at `end`, or the empty one where it belongs.
  size_t find(const Table& table, int64_t size, int64_t end) const;
  void insert(Table& table, int64_t size, int64_t end);
  void grow(Table& table, int64_t size);

  NgramLimits limits_;
  std::vector<Table> tables_;  // of sizes min_ngram .. max_ngram
  std::vector<int32_t> tokens_;
  // Ends up to here are in the tables. The newest end is not: an n-gram must not find itself.
  int64_t num_indexed_ = 0;
};

}  // namespace fdspec
