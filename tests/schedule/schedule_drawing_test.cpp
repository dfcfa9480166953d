#include "brigade/schedule/schedule_drawing.h"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>

#include "brigade/schedule/make_schedule.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string draw(
    ScheduleKind kind,
    int ranks,
    int micro_batches,
    int virtual_stages = 1,
    DrawingOptions options = {}) {
  return draw_schedule(
      make_schedule(
          kind,
          {.ranks = ranks,
           .virtual_stages = virtual_stages,
           .micro_batches = micro_batches}),
      options);
}

TEST(ScheduleDrawing, ShowsTheBubbleOf1F1B) {
  EXPECT_EQ(
      draw(ScheduleKind::kOneFOneB, 2, 3),
      "1f1b: 2 ranks, 2 stages, 3 micro-batches\n"
      "rank 0 | F0 F1 .  .  B0 -- F2 B1 -- .  B2 --\n"
      "rank 1 | .  F0 B0 -- F1 B1 -- F2 B2 -- .  .\n"
      "rank  stages            waits   live activations\n"
      "   0  0                 25.0%   2\n"
      "   1  1                 25.0%   1\n"
      "bubble 25.0% of 12 slots\n");
}

TEST(ScheduleDrawing, ShowsTheHalvesOfZeroBubble) {
  EXPECT_THAT(
      draw(ScheduleKind::kZeroBubble, 2, 2),
      HasSubstr("rank 0 | F0 F1 .  B0 W0 B1 W1\n"
                "rank 1 | .  F0 B0 F1 B1 W0 W1\n"));
}

TEST(ScheduleDrawing, NamesVirtualStagesByLetter) {
  const std::string text = draw(ScheduleKind::kInterleaved1F1B, 2, 2, 2);
  EXPECT_THAT(text, HasSubstr("rank 0 | F0a F1a F0b F1b"));
  EXPECT_THAT(text, HasSubstr("a slot and a live activation are 1/2"));
  EXPECT_THAT(text, HasSubstr("   0  0 2 "));
}

TEST(ScheduleDrawing, CutsLongTablesIntoBlocksAndSaysWhatIsLeftOut) {
  const std::string text = draw(
      ScheduleKind::kOneFOneB, 2, 20, 1, {.max_columns = 60, .max_blocks = 2});
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 60u) << text.substr(begin, end - begin);
    begin = end + 1;
  }
  EXPECT_THAT(text, HasSubstr("slots 13 on"));
  // 3 * 20 + 3 slots, of which two blocks of 13 are drawn.
  EXPECT_THAT(text, HasSubstr("(37 more slots are not drawn)"));
  EXPECT_THAT(draw(ScheduleKind::kOneFOneB, 2, 3), Not(HasSubstr("not drawn")));
}

TEST(ScheduleDrawing, TheDrawingsOfTheDocumentationAreTheCodes) {
  std::ifstream file(BRIGADE_SOURCE_DIR "/docs/pipeline_parallel.md");
  const std::string page{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_THAT(page, HasSubstr(draw(ScheduleKind::kAfab, 4, 8)));
  EXPECT_THAT(page, HasSubstr(draw(ScheduleKind::kOneFOneB, 4, 8)));
  EXPECT_THAT(page, HasSubstr(draw(ScheduleKind::kInterleaved1F1B, 2, 4, 2)));
  EXPECT_THAT(page, HasSubstr(draw(ScheduleKind::kZeroBubble, 4, 8)));
}

}  // namespace
}  // namespace brigade
