#include "tests/support/ranks_of_program.h"

#include <signal.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace brigade::testing {

bool eventually(const std::function<bool()>& condition) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::minutes(10);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline)
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::string read_proc(pid_t pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

pid_t find_rank(pid_t supervisor, int rank) {
  const std::string wanted =
      std::string("\0RANK=", 6) + std::to_string(rank) + std::string(1, '\0');
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos)
      continue;
    const pid_t pid = std::stoi(name);
    const std::string stat = read_proc(pid, "stat");
    const size_t end = stat.rfind(") ");
    if (end == std::string::npos || stat[end + 2] == 'Z')
      continue;
    const pid_t parent = std::stoi(stat.substr(end + 4));
    const std::string environment = '\0' + read_proc(pid, "environ");
    if (parent == supervisor && environment.find(wanted) != std::string::npos)
      return pid;
  }
  return -1;
}

void send_signal(pid_t pid, int number) {
  if (pid <= 0)
    throw std::invalid_argument("no process to send a signal to");
  if (::kill(pid, number) != 0 && errno != ESRCH)
    throw std::system_error(errno, std::generic_category(), "kill()");
}

}  // namespace brigade::testing
