#include "brigade/launch/rank_environment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "brigade/base/error.h"
#include "brigade/files/descriptor.h"
#include "brigade/launch/cpu_share.h"
#include "brigade/launch/environment.h"
#include "brigade/launch/huge_pages.h"

namespace brigade {

namespace fs = std::filesystem;

RankFolder::RankFolder() {
  // mkdtemp's folder is mode 0700.
  std::string pattern =
      fs::path(process_environment()("TMPDIR").value_or("/tmp")) /
      "brigade-run-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr)
    throw StorageError(fmt::format(
        "[launch] cannot make a folder '{}' for the ranks to meet in: {}; "
        "set TMPDIR to a folder that can be written",
        pattern,
        ::strerror(errno)));
  path_ = pattern;
  // c10d waits for a store's file that is not there yet for minutes.
  const Descriptor store(
      ::open(store_file().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

RankFolder::~RankFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path RankFolder::report_file(int rank) const {
  return path_ / fmt::format("report-{}", rank);
}

std::vector<fs::path> RankFolder::files(int nproc) const {
  std::vector<fs::path> files = {store_file()};
  for (int rank = 0; rank < nproc; ++rank)
    files.push_back(report_file(rank));
  return files;
}

std::vector<std::string> rank_environment(
    const SupervisorOptions& options,
    const RankFolder& folder,
    int rank) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    // Another launcher's: our ranks are not its.
    if (equals != std::string::npos && !text.starts_with("TORCHELASTIC_"))
      variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  const int share = std::max(1, available_cpus() / options.nproc);
  for (const auto& [name, value] :
       thread_variables(process_environment(), share, options.threads_per_rank))
    variables[name] = value;
  if (const auto variable = huge_page_variable(process_environment()))
    variables.insert_or_assign(variable->first, variable->second);
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] =
      std::to_string(options.nproc);
  variables["BRIGADE_STORE_FILE"] = folder.store_file();
  variables["BRIGADE_REPORT_FILE"] = folder.report_file(rank);
  variables["BRIGADE_TERMINAL"] =
      ::isatty(options.error_descriptor) == 1 ? "1" : "0";
  for (const auto& [name, value] : options.environment)
    variables[name] = value;
  std::vector<std::string> list;
  for (const auto& [name, value] : variables)
    list.push_back(name + "=" + value);
  return list;
}

}  // namespace brigade
