// SPDX-License-Identifier: Apache-2.0
// A hash table (node, token) -> child node, for all nodes of a tree together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fdspec {

// Linear probing with at most half of the slots in use; erasing leaves no marks behind.
class EdgeTable {
 public:
  struct Slot {
    int32_t node;
    int32_t token;
    int32_t child;  // -1 in an empty slot
  };

  EdgeTable() : slots_(kFirstSlots, Slot{0, 0, -1}) {}

  // -1 if there is none.
  int32_t find(int32_t node, int32_t token) const { return slots_[locate(node, token)].child; }

  // Adds an edge, or changes its child.
  void set(int32_t node, int32_t token, int32_t child) {
    size_t slot = locate(node, token);
    if (slots_[slot].child < 0) {
      if (2 * ++num_used_ > slots_.size()) {
        grow();
        slot = locate(node, token);
      }
    }
    slots_[slot] = {node, token, child};
  }

  // The edge must exist.
  void erase(int32_t node, int32_t token) {
    const size_t mask = slots_.size() - 1;
    size_t hole = locate(node, token);
    // Later entries of the cluster that may stand here move up.
    for (size_t slot = (hole + 1) & mask; slots_[slot].child >= 0; slot = (slot + 1) & mask) {
      const size_t home = hash(slots_[slot].node, slots_[slot].token) & mask;
      if (((slot - home) & mask) >= ((slot - hole) & mask)) {
        slots_[hole] = slots_[slot];
        hole = slot;
      }
    }
    slots_[hole].child = -1;
    --num_used_;
  }

  size_t size() const { return num_used_; }

 private:
  static constexpr size_t kFirstSlots = 64;

  static size_t hash(int32_t node, int32_t token) {
    const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(node)) << 32;
    uint64_t value = (key | static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
    value ^= value >> 32;
    return static_cast<size_t>(value * 0xD6E8FEB86659FD93u >> 16);
  }

  size_t locate(int32_t node, int32_t token) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash(node, token) & mask;
    while (slots_[slot].child >= 0 && (slots_[slot].node != node || slots_[slot].token != token)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  void grow() {
    std::vector<Slot> old(2 * slots_.size(), Slot{0, 0, -1});
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.child >= 0) slots_[locate(slot.node, slot.token)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t num_used_ = 0;
};

}  // namespace fdspec
