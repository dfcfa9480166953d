// Files that the build puts into the program (cmake/embed.cmake).
#pragma once

#include <string_view>

namespace brigade::embedded {

// brigade/machine/machines.json.
extern const std::string_view machines_json;
// dygraphs, of Debian's libjs-dygraphs: the charts.
extern const std::string_view dygraph_js;
extern const std::string_view dygraph_css;
// brigade/report/page*.js and page.css.
extern const std::string_view page_js;
extern const std::string_view page_time_js;
extern const std::string_view page_experts_js;
extern const std::string_view page_tables_js;
extern const std::string_view page_css;
// brigade/data/table_rows.py.
extern const std::string_view table_rows_py;

}  // namespace brigade::embedded
