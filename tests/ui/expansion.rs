async fn charge(order_id: u64, card: Card) -> Result<Receipt, ApiError> {
    __private::for_editor!(__private::option::key, __private::option::ttl);
    let (outside, inside) = __private::entry();
    __private::locked(
        outside,
        |error| <Result<Receipt, ApiError> as __private::FromLockError>::from_lock_error(error),
        async move {
            if let Some(value) = __private::returns::<Result<Receipt, ApiError>>() {
                return value;
            }
            let order_id = order_id;
            let card = card;
            __private::for_editor!(::core::format_args!("order:{order_id}"));
            let key = __private::key(
                const { &__private::Template::new("order:{order_id}") },
                &[__private::text("order:"), __private::value(&&order_id)],
            );
            let manager = __private::default_manager();
            let options = __private::options().ttl(::core::time::Duration::from_millis(10000u64));
            inside.acquire(manager, key, options).await;
            ({ provider::charge(order_id, card).await })
        },
    )
    .await
}
