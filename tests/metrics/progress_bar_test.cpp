#include "brigade/metrics/progress_bar.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

TEST(ProgressText, ShowsBarShareDetailAndTimeLeft) {
  // 120 of 400; 60 of them took 30 s, so the other 280 take 140 s.
  EXPECT_EQ(
      progress_text(
          "",
          {.done = 120,
           .total = 400,
           .measured = 60,
           .measured_ns = 30'000'000'000},
          "120/400"),
      "[=========                     ] 30 %  120/400  ETA 2:20");
  EXPECT_EQ(
      progress_text(
          "tokenizing",
          {.done = 1,
           .total = 10'001,
           .measured = 1,
           .measured_ns = 1'000'000'000},
          ""),
      "tokenizing [                              ] 0 %  ETA 2:46:40");
}

TEST(ProgressText, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(
      progress_text("reading", {.done = 5, .total = 0}, "5 MB"),
      "reading  5 MB");
  EXPECT_EQ(
      progress_text("", {.done = 0, .total = 4}, "0/4"),
      "[                              ] 0 %  0/4  ETA --:--");
  // More than the total is all of it.
  EXPECT_EQ(
      progress_text("", {.done = 9, .total = 4}, ""),
      "[==============================] 100 %  ETA --:--");
}

TEST(ProgressText, FitsIntoTheTerminal) {
  const Progress half{.done = 2, .total = 4};
  const std::string detail = "2/4  \033[1mloss 1.0000\033[0m";
  const auto text = [&](int64_t columns) {
    return progress_text("", half, detail, columns);
  };
  const std::string whole =
      "[===============               ] 50 %  " + detail + "  ETA --:--";
  EXPECT_EQ(text(0), whole);
  EXPECT_EQ(text(66), whole);  // of these the colours take none
  EXPECT_EQ(text(44), "[====    ] 50 %  " + detail + "  ETA --:--");
  // A bar of less than 5 columns shows nothing; without it are 33.
  EXPECT_EQ(text(41), "[==   ] 50 %  " + detail + "  ETA --:--");
  EXPECT_EQ(text(40), "50 %  " + detail + "  ETA --:--");
  EXPECT_EQ(text(33), "50 %  " + detail + "  ETA --:--");
  EXPECT_EQ(text(30), "50 %  " + detail + "  ETA --");
  EXPECT_EQ(text(16), "50 %  2/4  \033[1mloss \033[0m");
}

TEST(Colour, IsNotShownWhereNoColorIsSet) {
  EXPECT_TRUE(allows_colour({}, "xterm"));
  EXPECT_TRUE(allows_colour("", "xterm"));  // empty counts as not set
  EXPECT_FALSE(allows_colour("1", "xterm"));
  EXPECT_FALSE(allows_colour({}, "dumb"));
}

TEST(ProgressBar, DrawsOnlyForAPersonAndClearsItself) {
  testing::internal::CaptureStderr();
  {
    ProgressBar hidden("x", 2, ProgressBar::Visible::kNo);
    hidden.draw(1, "");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  {
    ProgressBar shown("x", 3, ProgressBar::Visible::kYes);
    shown.draw(1, "a");
    shown.draw(2, "too soon");
    shown.draw(3, "end");
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.rfind("\r\033[Kx [", 0), 0U);
  EXPECT_NE(text.find("%  a  ETA"), std::string::npos);
  EXPECT_EQ(text.find("too soon"), std::string::npos);
  EXPECT_NE(text.find("100 %  end"), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - 4), "\r\033[K");
}

}  // namespace
}  // namespace brigade
