// SPDX-License-Identifier: Apache-2.0
// Position-keyed Gumbel noise: a pure function of (seed, choice, position, token).
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"): the block with
// counter (token / 4, position, choice, 0) and the seed as key gives the words of four tokens.
#pragma once

#include "common/vec.h"

namespace fdspec {
namespace FDSPEC_ISA {

// Upper bound of gumbel().
inline constexpr float kMaxNoise = 16.64f;

struct NoiseKey {
  uint64_t seed;
  uint32_t choice;
  uint32_t position;
};

// words[j] lane i = word j of the block whose counter begins with blocks[i].
FDSPEC_INLINE void philox(I16 blocks, NoiseKey key, I16 words[4]) {
  const auto splat_word = [](uint32_t x) { return I16::broadcast(static_cast<int32_t>(x)); };
  const I16 multiplier_a = splat_word(0xD2511F53), multiplier_b = splat_word(0xCD9E8D57);
  uint32_t key_low = static_cast<uint32_t>(key.seed);
  uint32_t key_high = static_cast<uint32_t>(key.seed >> 32);
  I16 a = blocks, b = splat_word(key.position), c = splat_word(key.choice), d = I16::zero();
  for (int round = 0; round < 10; ++round) {
    const I16 high_a = multiply_high_unsigned(multiplier_a, a), low_a = multiplier_a * a;
    const I16 high_b = multiply_high_unsigned(multiplier_b, c), low_b = multiplier_b * c;
    a = high_b ^ b ^ splat_word(key_low);
    b = low_b;
    c = high_a ^ d ^ splat_word(key_high);
    d = low_a;
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  words[0] = a;
  words[1] = b;
  words[2] = c;
  words[3] = d;
}

// -log(-log(u)) with u = (k + 1/2) / 2^23 and k the upper 23 bits of a word; u is exact.
FDSPEC_INLINE F16 gumbel(I16 word) {
  const F16 uniform = (shift_right<9>(word).to_float() + splat(0.5f)) * splat(0x1p-23f);
  return F16::zero() - log(F16::zero() - log(uniform));
}

// Words of sixteen tokens with any ids.
FDSPEC_INLINE I16 token_words(I16 tokens, NoiseKey key) {
  I16 words[4];
  philox(shift_right<2>(tokens), key, words);
  const I16 which = tokens & I16::broadcast(3);
  I16 word = words[3];
  for (int j = 0; j < 3; ++j) word = select(which == I16::broadcast(j), words[j], word);
  return word;
}

// True for the words whose noise may reach a bound; false is certain. Noise of at least n needs
// k / 2^23 >= exp(-exp(-n)); the table has such k for n = 0, 1, ..., less a margin for rounding.
FDSPEC_INLINE M16 may_reach(I16 word, float bound) {
  constexpr int32_t kLeast[] = {3085964, 5806567, 7326771, 7981158, 8236331, 8332243,
                                8367808, 8380930, 8385762, 8387540, 8388195, 8388435,
                                8388524, 8388557, 8388569, 8388573, 8388575};
  constexpr float kLast = 16.0f;
  const int32_t least = bound >= 0.0f ? kLeast[static_cast<int>(min_of(bound, kLast))] : 0;
  return shift_right<9>(word) > I16::broadcast(least - 1);
}

}  // namespace FDSPEC_ISA
}  // namespace fdspec
