#include "brigade/launch/program_start.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>

#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// The exit code of a process that does only that; 128 + signal for one that was
// killed.
int exit_code_of(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(ProgramStart, TheNextOpenedFileIsNoStandardDescriptor) {
  for (int closed = 0; closed < 8; ++closed) {
    const int first = exit_code_of([closed] {
      for (int number = 0; number < 3; ++number) {
        if ((closed & (1 << number)) != 0)
          ::close(number);
      }
      prepare_program();
      for (int number = 0; number < 3; ++number) {
        if (::fcntl(number, F_GETFD) < 0)
          return 100;
      }
      return ::open("/dev/null", O_RDONLY);
    });
    EXPECT_GE(first, 3) << closed;
    EXPECT_LT(first, 100) << closed;
  }
}

// What a write beyond a limit of file sizes of one byte returns in errno.
int write_too_much(const fs::path& path) {
  const struct rlimit limit = {1, 1};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  if (::write(file, "ab", 2) != 1)
    return 1;
  return ::write(file, "b", 1) < 0 ? errno : 0;
}

TEST(ProgramStart, AWriteBeyondTheLimitOfFileSizesFailsAsOneToAFullDiskDoes) {
  const TemporaryFolder folder;
  const fs::path path = folder / "file";
  EXPECT_EQ(exit_code_of([&] { return write_too_much(path); }), 128 + SIGXFSZ);
  fs::remove(path);
  EXPECT_EQ(
      exit_code_of([&] {
        prepare_program();
        return write_too_much(path);
      }),
      EFBIG);
  fs::remove(path);
}

// A program that is started has the default action again, unless the signal
// was ignored before.
TEST(ProgramStart, TheLimitOfFileSizesEndsOtherProgramsAsBefore) {
  for (const bool ignores : {false, true}) {
    const int code = exit_code_of([ignores] {
      ::signal(SIGXFSZ, ignores ? SIG_IGN : SIG_DFL);
      prepare_program();
      ::execlp("sh", "sh", "-c", "kill -XFSZ $$; exit 3", nullptr);
      return 127;
    });
    EXPECT_EQ(code, ignores ? 3 : 128 + SIGXFSZ);
  }
}

TEST(ProgramStart, AProgramOutlivesItsReadersAndThoseThatItStartsDoNot) {
  const auto write_without_reader = [] {
    int ends[2];
    if (::pipe(ends) != 0 || ::close(ends[0]) != 0)
      return 1;
    return ::write(ends[1], "a", 1) < 0 ? errno : 0;
  };
  ::signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(exit_code_of(write_without_reader), 128 + SIGPIPE);
  EXPECT_EQ(
      exit_code_of([&] {
        outlive_readers();
        return write_without_reader();
      }),
      EPIPE);
  const int started = exit_code_of([] {
    outlive_readers();
    ::execlp("sh", "sh", "-c", "kill -PIPE $$; exit 3", nullptr);
    return 127;
  });
  EXPECT_EQ(started, 128 + SIGPIPE);
}

}  // namespace
}  // namespace brigade
