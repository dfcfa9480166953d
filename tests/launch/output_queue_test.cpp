#include "brigade/launch/output_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "brigade/launch/rank_process.h"

namespace brigade {
namespace {

std::string read_all(int descriptor) {
  ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
  std::string text;
  char bytes[4096];
  ssize_t count = 0;
  while ((count = ::read(descriptor, bytes, sizeof(bytes))) > 0)
    text.append(bytes, static_cast<size_t>(count));
  return text;
}

TEST(OutputQueue, NeverWaitsForAPipeThatNobodyReadsAndLosesNothing) {
  Pipe pipe = make_pipe();
  OutputQueue queue(pipe.write_end.get());
  std::string all;
  while (!queue.is_full()) {
    const std::string line(1000, static_cast<char>('a' + all.size() % 26));
    queue.push(line);
    all += line;
  }
  std::string read;
  while (!queue.is_empty()) {
    read += read_all(pipe.read_end.get());
    queue.write_some();
  }
  read += read_all(pipe.read_end.get());
  EXPECT_EQ(read, all);
}

TEST(OutputQueue, DropTellsHowMuchWasLeft) {
  Pipe pipe = make_pipe();
  OutputQueue queue(pipe.write_end.get());
  queue.push(std::string(size_t{1} << 20, 'x'));
  const size_t in_the_pipe = read_all(pipe.read_end.get()).size();
  EXPECT_GT(in_the_pipe, 0);
  EXPECT_EQ(queue.drop(), (size_t{1} << 20) - in_the_pipe);
  EXPECT_TRUE(queue.is_empty());
}

TEST(OutputQueue, AClosedPipeTakesEverything) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe = make_pipe();
  pipe.read_end.close();
  OutputQueue queue(pipe.write_end.get());
  queue.push("lost");
  EXPECT_TRUE(queue.is_empty());
}

}  // namespace
}  // namespace brigade
