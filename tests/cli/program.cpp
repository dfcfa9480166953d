#include "program.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/become.h"

namespace brigade {

namespace {

namespace fs = std::filesystem;
constexpr auto kPatience = std::chrono::minutes(10);

void redirect(const fs::path& path, int descriptor) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  ::dup2(file, descriptor);
  ::close(file);
}

}  // namespace

const char* const kProgram = BRIGADE_BINARY_DIR "/brigade";

ProgramTest::ProgramTest() {
  std::string pattern = fs::temp_directory_path() / "brigade_run_XXXXXX";
  folder_ = ::mkdtemp(pattern.data());
  fs::create_directory(folder_ / "tmp");
}

ProgramTest::~ProgramTest() {
  fs::remove_all(folder_);
}

pid_t ProgramTest::start(const std::vector<std::string>& arguments) const {
  return start_program(kProgram, arguments);
}

pid_t ProgramTest::start_program(
    const std::string& program,
    const std::vector<std::string>& arguments) const {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv("T", folder_.c_str(), 1);
    ::setenv("TMPDIR", (folder_ / "tmp").c_str(), 1);
    redirect(folder_ / "out", STDOUT_FILENO);
    redirect(folder_ / "err", STDERR_FILENO);
    testing::become(program, arguments);
  }
  return pid;
}

int ProgramTest::exit_code(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string ProgramTest::out() const {
  return read_if_there(folder_ / "out");
}

std::string ProgramTest::err() const {
  return read_if_there(folder_ / "err");
}

std::string read_if_there(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline)
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool is_running(pid_t pid) {
  const std::string stat =
      read_if_there("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat[name_end + 2] != 'Z';
}

}  // namespace brigade
