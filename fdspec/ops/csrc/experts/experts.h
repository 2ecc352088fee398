// SPDX-License-Identifier: Apache-2.0
// The feed-forward blocks of a mixture of experts: every row goes through its chosen experts, and
// their results are added with the row's factors.
//
//   out[row] = residual[row] + sum over choices of factor * down_e(swiglu(gate_up_e(x[row])))
//
// Rows are grouped by expert, so that an expert's weights are read once for all of its rows, and
// multiplied by the kernels of linear.h. The bits of a row's result do not depend on its group.
#pragma once

#include <cstddef>
#include <vector>

#include "linear/activations.h"
#include "linear/linear.h"

namespace fdspec {

// One projection of all experts: matrices of one layout, one behind the other.
struct ExpertMatrices {
  PackedLayout layout;  // of one of them; whole panels
  bool float_activations;
  const uint8_t* data;  // [num_experts, layout.total_bytes()]

  bool is_integer() const { return layout.is_integer() && !float_activations; }
};

struct ExpertWeights {
  ExpertMatrices gate_up;  // hidden -> gate, then up
  ExpertMatrices down;     // ffn -> hidden
  int64_t num_experts;

  int64_t hidden() const { return gate_up.layout.in_features; }
  int64_t ffn() const { return down.layout.in_features; }
};

struct ExpertsArgs {
  ExpertWeights weights;
  Activation activation;  // of x on its way into the experts: plain or normalised
  const float* x;         // [rows, hidden]
  const float* norm_weight;
  float epsilon;
  const int32_t* experts;  // [rows, num_chosen], each in [0, num_experts), no two of a row alike
  const float* factors;    // [rows, num_chosen]
  int64_t num_chosen;
  const float* residual;  // [rows, hidden] or null; may be out
  float* out;             // [rows, hidden]
  int64_t rows;
};

// Rows that are worked on at the same time; more are taken in turns, which bounds the workspace.
inline constexpr int64_t kMaxExpertRows = 512;

// Where rows are while they pass through the experts: a place for each choice of each row. The
// places of an expert are neighbours and begin at a tile.
class FDSPEC_EXPORT ExpertPlaces {
 public:
  // Makes room; nothing else allocates.
  void reserve(int64_t rows, int64_t num_chosen, int64_t num_experts);
  // experts: [rows, num_chosen]
  void assign(const int32_t* experts, int64_t rows, int64_t num_chosen, int64_t num_experts);

  int64_t num_places() const { return num_places_; }
  const int32_t* of_choices() const { return of_choices_.data(); }
  // For each place the row it is for, and its own number; -1 where no row is.
  const int32_t* rows() const { return rows_.data(); }
  const int32_t* numbers() const { return numbers_.data(); }
  // First place of an expert, and how many follow.
  int64_t begin(int64_t expert) const { return begins_[static_cast<size_t>(expert)]; }
  int64_t count(int64_t expert) const { return counts_[static_cast<size_t>(expert)]; }

 private:
  int64_t num_places_ = 0;
  std::vector<int32_t> of_choices_, rows_, numbers_;
  std::vector<int64_t> begins_, counts_;
};

// Places that so many rows may need.
int64_t max_expert_places(int64_t rows, int64_t num_chosen, int64_t num_experts);

// 64-byte aligned memory for run_experts() in a region of num_slices.
FDSPEC_EXPORT int64_t experts_workspace_bytes(const ExpertWeights& weights, int64_t rows,
                                              int64_t num_chosen, int num_slices);

// Every slice of a region calls it, with the same `places`, which reserve() has made room in; it
// returns when all have finished.
FDSPEC_EXPORT void run_experts(const ExpertsArgs& args, ExpertPlaces* places, void* workspace,
                               Slice slice);

// The same in a region of its own, with memory of the calling thread.
FDSPEC_EXPORT void run_all_experts(const ExpertsArgs& args);

}  // namespace fdspec
