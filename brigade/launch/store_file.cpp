#include "brigade/launch/store_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "brigade/base/error.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

fs::path private_folder(const GetEnv& getenv) {
  const std::string named = getenv("TMPDIR").value_or("");
  const fs::path folder = fs::path(named.empty() ? "/tmp" : named) /
                          fmt::format("brigade-{}", ::getuid());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw ConfigError(fmt::format(
        "[launch] cannot make the folder '{}' for the ranks to meet in: {}; "
        "set TMPDIR to a folder that can be written",
        folder.string(),
        std::strerror(errno)));
  }
  struct stat status {};
  const bool is_private =
      ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
      status.st_uid == ::getuid() && (status.st_mode & 077) == 0;
  if (!is_private) {
    throw ConfigError(fmt::format(
        "[launch] '{}' must be a folder of yours that nobody else can open "
        "(mode 0700), because the ranks meet in it; remove it or set TMPDIR",
        folder.string()));
  }
  return folder;
}

}  // namespace

std::filesystem::path private_store_file(
    const GetEnv& getenv,
    const std::string& job) {
  std::string name;
  for (const char c : job)
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  return private_folder(getenv) / ("store-" + name);
}

std::string parent_identity() {
  const auto pid = ::getppid();
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  // Fields after the command, which may itself hold ')': the start time is
  // the 20th of them.
  size_t position = stat.rfind(')');
  for (int field = 0; field < 20 && position != std::string::npos; ++field)
    position = stat.find(' ', position + 1);
  const std::string start =
      position == std::string::npos
          ? "0"
          : stat.substr(
                position + 1, stat.find(' ', position + 1) - position - 1);
  return fmt::format("parent-{}-{}", pid, start);
}

}  // namespace brigade
