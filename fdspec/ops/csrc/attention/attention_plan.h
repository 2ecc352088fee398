// SPDX-License-Identifier: Apache-2.0
// What cascade append attention has to do in a step, as a list of work items, and how the items
// are split over threads. One plan serves all layers of the step.
//
// A row is a query token; its keys are the tokens of its sequence that it sees, in order of
// position, taken in parts of kPartKeys. An item is a block of rows and one key head: they share a
// pass over some parts of the keys. A thread's share may start or end in the middle of an item's
// parts, so that one long sequence keeps all threads busy.
//
// Items come in levels. All but the last are for prefixes that neighbouring sequences have in
// common, the longest runs first: an item of such a level has the rows of several sequences, and
// the items of the next levels go on from the states that it left. So a tree of prefixes is read
// once, if sequences that share more of it are closer to each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/isa.h"

namespace fdspec {

inline constexpr int kPartKeys = 64;

// Sizes that a plan needs; the same for all layers of a model.
struct AttentionShape {
  int num_heads;
  int num_kv_heads;
  int head_dim;

  FDSPEC_INLINE int group() const { return num_heads / num_kv_heads; }
};

// The step's rows, as the op's arguments describe them.
struct AttentionRows {
  const int32_t* row_splits;    // [num_sequences + 1]
  const int32_t* context_lens;  // [num_sequences]
  const int32_t* parents;       // [num_rows]
  int num_sequences;
  int num_rows;
};

// Where the sequences' keys are; sequences that begin with the same blocks share a prefix.
struct AttentionBlocks {
  const int32_t* table;  // [num_sequences, max_blocks]
  int64_t max_blocks;
  int block_size;
};

// Neighbouring sequences, and the parts that they have in common.
struct PrefixRun {
  int first;
  int end;
  int num_parts;
};

struct AttentionItem {
  int sequence;  // whose blocks are read
  int kv_head;
  int context;    // tokens of the sequence in the cache before this step
  int first_row;  // of the whole step
  int num_rows;
  int num_chain_rows;  // the first of these rows: each sees all rows of its sequence before it
  int row_offset;      // index of first_row inside the sequence
  int first_part;      // more than 0: the rows have been through the parts before
  int num_parts;       // from first_part to that of the row with most keys
  bool is_prefix;      // of several sequences: its rows go on in items of a later level
  int64_t part_cost;
  int64_t start_cost;  // sum over the items of its level before it

  FDSPEC_INLINE int64_t cost() const { return part_cost * num_parts; }
};

// A place in the list of all parts of a level's items: before `part` (counted from the item's
// first) of `item`.
struct AttentionCut {
  int item;
  int part;
};

class FDSPEC_EXPORT AttentionPlan {
 public:
  // The rows must have passed check_attention_rows. Without blocks no prefixes are shared.
  AttentionPlan(const AttentionRows& rows, const AttentionShape& shape);
  AttentionPlan(const AttentionRows& rows, const AttentionShape& shape,
                const AttentionBlocks& blocks);

  // 1, or more if sequences share prefixes.
  int num_levels() const;
  const AttentionItem& item(int index) const;
  // Tokens between the last context token and the row: 0 for a row whose parent is -1.
  int depth(int row) const;

  // Where the share of thread `index` of `count` in a level begins; that of thread `index + 1` is
  // its end.
  AttentionCut cut(int level, int index, int count) const;

  // Rows of the step.
  int num_rows() const;
  // Most (row, head) pairs of an item.
  int max_queries() const;
  // Most parts that a thread has to do of an item which another thread began.
  int max_leading_parts(int count) const;
  // Threads that are worth waking.
  int num_slices() const;

 private:
  struct Level {
    int first_item;
    int end_item;
    int64_t cost;
  };

  void measure_depths(const AttentionRows& rows);
  // Sets the parts of each sequence that items of several sequences do.
  void share_prefixes(const AttentionRows& rows, const AttentionShape& shape,
                      const AttentionBlocks& blocks, std::vector<int32_t>* shared_parts);
  // Items of the parts of a run from first_part on.
  void add_prefix(const AttentionRows& rows, const AttentionShape& shape, const PrefixRun& run,
                  int first_part, Level* level);
  void add_sequences(const AttentionRows& rows, const AttentionShape& shape,
                     const std::vector<int32_t>& shared_parts);
  // The item for every key head.
  void add_items(AttentionItem item, const AttentionShape& shape, Level* level);

  std::vector<AttentionItem> items_;
  std::vector<Level> levels_;
  std::vector<int32_t> depths_;
  int max_queries_ = 0;
};

// What is wrong with the rows, beginning with the argument's name; empty if nothing is.
FDSPEC_EXPORT std::string check_attention_rows(const AttentionRows& rows);

}  // namespace fdspec
