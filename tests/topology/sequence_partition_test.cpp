#include "brigade/topology/sequence_partition.h"

#include <gmock/gmock.h>

#include <vector>

namespace brigade {
namespace {

using ::testing::ElementsAre;

TEST(SequencePartition, GivesRankRChunksRAndItsMirrorImage) {
  EXPECT_THAT(
      sequence_chunks(24, 3, 0),
      ElementsAre(TokenRange{0, 4}, TokenRange{20, 24}));
  EXPECT_THAT(
      sequence_chunks(24, 3, 1),
      ElementsAre(TokenRange{4, 8}, TokenRange{16, 20}));
  EXPECT_THAT(
      sequence_chunks(24, 3, 2),
      ElementsAre(TokenRange{8, 12}, TokenRange{12, 16}));
  EXPECT_THAT(token_positions(8, 2, 0), ElementsAre(0, 1, 6, 7));
}

TEST(SequencePartition, LeavesTheSequenceWholeForOneRank) {
  EXPECT_THAT(sequence_chunks(7, 1, 0), ElementsAre(TokenRange{0, 7}));
  EXPECT_THAT(token_positions(3, 1, 0), ElementsAre(0, 1, 2));
}

TEST(SequencePartition, CoversEachTokenOnceWithEqualCausalWork) {
  for (int cp : {2, 3, 4, 8}) {
    const int64_t tokens = 2 * cp * 5;
    std::vector<int> owners(static_cast<size_t>(tokens), 0);
    std::vector<int64_t> work;  // keys seen by the rank's queries
    for (int rank = 0; rank < cp; ++rank) {
      work.push_back(0);
      for (int64_t position : token_positions(tokens, cp, rank)) {
        ++owners[static_cast<size_t>(position)];
        work.back() += position + 1;
      }
    }
    EXPECT_THAT(owners, ::testing::Each(1));
    EXPECT_THAT(work, ::testing::Each(work.front()));
  }
}

TEST(SequencePartition, NamesTheNearestLengthsThatFit) {
  std::vector<std::string> problems;
  validate_sequence_partition(1022, 4, problems);
  validate_sequence_partition(3, 2, problems);
  validate_sequence_partition(0, 1, problems);
  EXPECT_THAT(
      problems,
      ElementsAre(
          "[sequence_partition] 1022 tokens do not split into the 2 * cp = 8 "
          "equal chunks of cp 4; nearest: 1016 or 1024",
          "[sequence_partition] 3 tokens do not split into the 2 * cp = 4 "
          "equal chunks of cp 2; nearest: 4",
          "[sequence_partition] a sequence of 0 tokens, but at least 1 is "
          "needed"));
  problems.clear();
  validate_sequence_partition(1023, 1, problems);
  validate_sequence_partition(1024, 4, problems);
  EXPECT_THAT(problems, ElementsAre());
}

}  // namespace
}  // namespace brigade
