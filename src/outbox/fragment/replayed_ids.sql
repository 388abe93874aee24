-- The ids of a filter ($5: first, last, first, last) as a multirange. NULL if they restrict nothing.
(SELECT range_agg(int8range(($5::bigint[])[2 * n - 1], ($5::bigint[])[2 * n], '[]'))
 FROM generate_series(1, cardinality($5::bigint[]) / 2) AS n)
