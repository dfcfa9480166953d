#include "brigade/launch/line_merger.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "brigade/launch/rank_process.h"

namespace brigade {
namespace {

class LineMergerTest : public ::testing::Test {
 protected:
  LineMergerTest() {
    ::fcntl(pipe_.read_end.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(pipe_.write_end.get(), F_SETFL, O_NONBLOCK);
  }
  size_t add(const std::string& prefix, bool is_terminal = false) {
    return merger_.add_stream(
        {.descriptor = pipe_.write_end.get(),
         .prefix = prefix,
         .is_terminal = is_terminal});
  }
  std::string written() {
    std::string text;
    char bytes[4096];
    ssize_t count = 0;
    while ((count = ::read(pipe_.read_end.get(), bytes, sizeof(bytes))) > 0)
      text.append(bytes, static_cast<size_t>(count));
    return text;
  }
  Pipe pipe_ = make_pipe();
  LineMerger merger_;
};

TEST_F(LineMergerTest, OnlyWholeLinesComeOutEachBehindItsPrefix) {
  const size_t a = add("[rank 0] ");
  const size_t b = add("[rank 1] ");
  merger_.feed(a, "one, be");
  EXPECT_EQ(written(), "");
  merger_.feed(b, "x\ny\nz");
  EXPECT_EQ(written(), "[rank 1] x\n[rank 1] y\n");
  merger_.feed(a, "gun\n");
  EXPECT_EQ(written(), "[rank 0] one, begun\n");
  merger_.finish(a);
  merger_.finish(b);
  EXPECT_EQ(written(), "[rank 1] z\n");
}

TEST_F(LineMergerTest, ALineWithoutEndIsCutAtOneMebibyte) {
  // To a file: a pipe holds less.
  Descriptor file(::memfd_create("lines", MFD_CLOEXEC));
  const size_t a =
      merger_.add_stream({.descriptor = file.get(), .prefix = "> "});
  const std::string half(size_t{1} << 19, 'x');
  merger_.feed(a, half);
  EXPECT_EQ(::lseek(file.get(), 0, SEEK_END), 0);
  merger_.feed(a, half);
  EXPECT_EQ(::lseek(file.get(), 0, SEEK_END), (1 << 20) + 3);
}

TEST_F(LineMergerTest, AProgressBarIsShownAtOnceOnATerminal) {
  const size_t bar = add("", true);
  merger_.feed(bar, "\r10%");
  EXPECT_EQ(written(), "\r10%");
  merger_.feed(bar, "\r20%");
  EXPECT_EQ(written(), "\r20%");
}

TEST_F(LineMergerTest, ALineOfAnotherRankDoesNotTearTheProgressBar) {
  const size_t bar = add("", true);
  const size_t other = add("[rank 1] ", true);
  merger_.feed(bar, "\r10%");
  merger_.feed(bar, "\r20%");
  written();
  merger_.feed(other, "war");
  EXPECT_EQ(written(), "");
  merger_.feed(other, "ning\n");
  // Erased, the line, and the bar's last state again.
  EXPECT_EQ(written(), "\r\x1b[K[rank 1] warning\n\r20%");
  merger_.feed(bar, " done\n");
  EXPECT_EQ(written(), " done\n");
  merger_.feed(other, "late\n");
  EXPECT_EQ(written(), "[rank 1] late\n");
}

TEST_F(LineMergerTest, WithoutATerminalAnUnfinishedLineWaits) {
  const size_t bar = add("", false);
  merger_.feed(bar, "\r10%");
  EXPECT_EQ(written(), "");
  merger_.finish(bar);
  EXPECT_EQ(written(), "\r10%\n");
}

}  // namespace
}  // namespace brigade
