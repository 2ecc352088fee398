// SPDX-License-Identifier: Apache-2.0
// Sixteen rows of 32-bit words, read across: lane i of words[j] is word j of row i.
#pragma once

#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

#if FDSPEC_ISA_ID == 2

// Reads the first num_words (at most 16) words of each row; the other words come out as 0.
FDSPEC_INLINE void transpose_words(const void* const rows[kLanes], int num_words,
                                   I16 words[kLanes]) {
  const __mmask16 mask = M16::first(num_words).v;
  __m512i a[kLanes], b[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) a[i] = _mm512_maskz_loadu_epi32(mask, rows[i]);
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  // a[4 * q + j]: in each quarter of the register, word j of rows 4q .. 4q + 3.
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // Quarter k of a[4 * q + j] is quarter q of word 4 * k + j: a transposition of quarters.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i low01 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x88);
    const __m512i low23 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xDD);
    const __m512i high23 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xDD);
    words[j].v = _mm512_shuffle_i32x4(low01, low23, 0x88);
    words[8 + j].v = _mm512_shuffle_i32x4(low01, low23, 0xDD);
    words[4 + j].v = _mm512_shuffle_i32x4(high01, high23, 0x88);
    words[12 + j].v = _mm512_shuffle_i32x4(high01, high23, 0xDD);
  }
}

#elif FDSPEC_ISA_ID == 1

// Words [first, first + 8) of eight rows.
FDSPEC_INLINE void transpose_eight(const void* const rows[8], int first, int num_words,
                                   __m256i words[8]) {
  const __m256i mask = lane_mask(first, num_words);
  __m256i a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    a[i] = _mm256_maskload_epi32(static_cast<const int*>(rows[i]) + first, mask);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    words[j] = _mm256_permute2x128_si256(a[j], a[4 + j], 0x20);
    words[4 + j] = _mm256_permute2x128_si256(a[j], a[4 + j], 0x31);
  }
}

// Reads the first num_words (at most 16) words of each row; the other words come out as 0.
FDSPEC_INLINE void transpose_words(const void* const rows[kLanes], int num_words,
                                   I16 words[kLanes]) {
#pragma GCC unroll 2
  for (int first = 0; first < kLanes; first += 8) {
    __m256i lo[8], hi[8];
    transpose_eight(rows, first, num_words, lo);
    transpose_eight(rows + 8, first, num_words, hi);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) words[first + j] = {lo[j], hi[j]};
  }
}

#else

// Reads the first num_words (at most 16) words of each row; the other words come out as 0.
FDSPEC_INLINE void transpose_words(const void* const rows[kLanes], int num_words,
                                   I16 words[kLanes]) {
  int32_t block[kLanes][kLanes] = {};
  for (int i = 0; i < kLanes; ++i) {
    const char* row = static_cast<const char*>(rows[i]);
    for (int j = 0; j < num_words; ++j) block[j][i] = read_as<int32_t>(row + 4 * j);
  }
  for (int j = 0; j < kLanes; ++j) words[j] = I16::load(block[j]);
}

#endif

}  // namespace FDSPEC_ISA
}  // namespace fdspec
