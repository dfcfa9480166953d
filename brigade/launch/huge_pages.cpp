#include "brigade/launch/huge_pages.h"

namespace brigade {

std::optional<std::pair<std::string, std::string>> huge_page_variable(
    const GetEnv& getenv) {
  const std::string name = "GLIBC_TUNABLES";
  const std::string wanted = "glibc.malloc.hugetlb=1";  // madvise(2)
  const auto set = getenv(name);
  if (!set || set->empty())
    return std::pair(name, wanted);
  if (set->find("glibc.malloc.hugetlb=") != std::string::npos)
    return std::nullopt;
  return std::pair(name, *set + ":" + wanted);
}

}  // namespace brigade
